"""Typed header fields of requests and responses, by family."""
