"""State machines over the replicated logs."""
