"""The pipeline: tables from logs, without and with Spark."""
