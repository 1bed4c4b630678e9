"""Writes the committed logs as Avro files, exactly once, and verifies them."""
