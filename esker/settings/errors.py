"""The error of a wrong setting."""

from __future__ import annotations

from collections.abc import Sequence


class ConfigError(Exception):
    """A setting is unknown, missing or impossible; the message names its key.

    Of several wrong settings the message has a line each, and `key` and `reason` are the first's.
    """

    def __init__(self, key: str, reason: str, *others: ConfigError) -> None:
        super().__init__("\n".join([f"{key}: {reason}", *map(str, others)]))
        self.key = key
        self.reason = reason


def raise_all(errors: Sequence[ConfigError]) -> None:
    """Raise one ConfigError with all the given errors, if there are any."""
    if errors:
        first, *others = errors
        raise ConfigError(first.key, first.reason, *others)
