"""Writing to topics: rows to messages, batches, retries."""
