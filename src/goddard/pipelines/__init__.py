"""Pipelines from topics to tables: job files, and what runs them on Spark.

``config`` reads a job file, ``runner`` runs it. Delta and Iceberg tables get each message exactly
once, also if Spark repeats a batch after a crash. ``builtin`` has the included pipelines.
"""
