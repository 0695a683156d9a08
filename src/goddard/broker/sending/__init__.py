"""Storing messages: sends, batches, retries, replies, delays, transactions."""
