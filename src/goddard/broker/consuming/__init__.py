"""Serving consumers: pulls, long polling, filters, offsets, clients, locks."""
