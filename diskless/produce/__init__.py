"""Produce: from a request's batches to committed objects in the store."""
