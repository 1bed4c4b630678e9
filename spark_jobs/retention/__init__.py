"""Plan retention from outside: digests of the log, the plan file, and what a plan frees."""
