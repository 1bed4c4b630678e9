"""The sans-I/O core of the quorum: events in, effects out."""
