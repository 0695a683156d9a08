"""Verbs about brokers, name servers, clusters, controllers and files."""
