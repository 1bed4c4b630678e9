"""Fetch: from batch coordinates to the bytes that a consumer reads."""
