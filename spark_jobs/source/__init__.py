"""`esker_log`, the Spark data source of the logs, in batch and streaming; and the stream's sink."""
