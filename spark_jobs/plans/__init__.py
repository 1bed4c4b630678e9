"""Plan files: written once, verified, and applied row by row with a journal."""
