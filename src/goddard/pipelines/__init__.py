"""Pipelines from topics to tables: job files, and what runs them on Spark.

``jobs.files`` reads and checks a job file, ``running`` runs it. A batch that Spark repeats after a
crash replaces in every table what it had written itself, and nothing else: tables get each message
exactly once. ``ready`` has the pipelines that come with Goddard.
"""
