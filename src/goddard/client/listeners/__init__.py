"""Calling listeners: concurrent, orderly, and what is redelivered."""
