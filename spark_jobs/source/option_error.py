"""The error of all data sources here for an option that cannot be used."""

from __future__ import annotations


class OptionError(ValueError):
    """An option is missing, unknown or impossible. The message names it."""
