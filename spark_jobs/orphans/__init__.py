"""Finds objects without references, and references without objects, by listing the store."""
