"""`esker_records`, the Spark data source of topics' records, and the decoder of their batches."""
