"""KIP-630 checkpoints: write, verify, load."""
