"""Verbs about topics, groups, offsets, messages and clients."""
