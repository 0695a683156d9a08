"""Jobs as Spark Declarative Pipelines: ``export`` writes a project, ``datasets`` is used in it."""
