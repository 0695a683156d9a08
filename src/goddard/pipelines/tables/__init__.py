"""Tables that pipelines write: Parquet, Delta and Iceberg."""
