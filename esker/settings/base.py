"""What a setting is: a key, how its text becomes a value, a default, and a sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: how its text becomes a value, and what it is if it is not given."""

    key: str
    parse: Callable[[str], Any]
    default: Any  # of the parsed type; None: must be given, or the text says what happens
    help: str  # one sentence, with unit

    @property
    def default_text(self) -> str:
        """The default as it would stand in a file; nothing if there is none, or it is empty."""
        default = self.default
        if isinstance(default, bool):
            return str(default).lower()
        if default in (None, (), {}):
            return ""
        if isinstance(default, tuple):
            return ",".join(default)
        assert isinstance(default, int | float | str), f"{self.key}: a default without a text"
        return str(default)


@dataclass(frozen=True, slots=True)
class Section:
    """Settings of one thing, as `docs/configuration.md` lists them."""

    title: str
    settings: tuple[Setting, ...]
