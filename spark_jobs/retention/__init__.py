"""Plans retention from outside the coordinator: digests of its log, and what a plan frees."""
