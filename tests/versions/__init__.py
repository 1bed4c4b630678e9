"""Every announced version of every request, asked of whole nodes."""
