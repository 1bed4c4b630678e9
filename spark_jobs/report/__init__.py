"""The analytics report: what a cluster's data costs, and where it rots."""
