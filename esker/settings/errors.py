"""What is wrong with a setting."""

from __future__ import annotations


class ConfigError(Exception):
    """A setting that is unknown, missing or impossible. The message names the key."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")
        self.key = key
        self.reason = reason
