"""Requests of administration tools, one module per subject."""
