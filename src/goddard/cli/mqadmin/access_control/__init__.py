"""Verbs about users and rules (5.x) and accounts (4.x)."""
