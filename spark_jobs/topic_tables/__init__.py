"""Topics kept as tables: Iceberg tables and directories of Parquet files, each record once."""
