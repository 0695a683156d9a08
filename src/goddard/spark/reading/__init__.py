"""Reading topics: ranges of offsets, micro-batches, pulls."""
