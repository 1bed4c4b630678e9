"""Rewrites objects in the background: merges small runs of batches, and compacts partitions.

`planner` chooses the runs, `rewriter` reads, rewrites and uploads them, `child` runs the rewriter
in a process of its own, and `service` asks the batch coordinator to replace the runs.

Source: docs/design/compaction.md.
"""
