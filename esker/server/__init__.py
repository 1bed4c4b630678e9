"""A node's process: its roles, their services on the quorum's groups, and its shutdown."""
