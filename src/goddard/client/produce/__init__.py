"""Producers: sending, retries, batches, transactions, request and reply."""
