"""Merges objects from outside the brokers: plans from logs, rewrites here or in Spark."""
