"""Message traces: records, the tracer, the hooks that feed it."""
