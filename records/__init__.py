"""Typed records and their bytes: what a metadata record is, and how Kafka writes it."""
