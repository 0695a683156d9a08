"""Pipelines: job files that carry messages into tables with Spark."""
