"""The log's records as tables, and the coordinator's log folded into its state at an offset."""
