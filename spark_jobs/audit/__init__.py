"""Checks every invariant over logs, checkpoints, replicas and objects, each against the others."""
