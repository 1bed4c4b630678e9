"""The error of a wrong setting."""

from __future__ import annotations


class ConfigError(Exception):
    """A setting is unknown, missing or impossible; the message names its key."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")
        self.key = key
        self.reason = reason
