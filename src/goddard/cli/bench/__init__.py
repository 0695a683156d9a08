"""``goddard bench``: how fast a cluster is, as clients see it."""
