"""Read logs, checkpoints, archives and running quorums into columns."""
