"""Enforces access control on the requests of clients (`diskless.access.gate`)."""
