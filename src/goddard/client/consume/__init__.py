"""Consumers: assignment of queues, pulling, offsets; push and lite pull."""
