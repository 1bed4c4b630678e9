"""Declares a setting: its key, its parser, its default, and a sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting, with the parser of its text and its default."""

    key: str
    parse: Callable[[str], Any]
    default: Any  # of the parsed type; None: must be given, or the text says what happens
    help: str  # one sentence, with unit

    @property
    def default_text(self) -> str:
        """Return the default value as in a properties file, or empty text without a default."""
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
    """A section of settings, as `docs/configuration.md` lists them."""

    title: str
    settings: tuple[Setting, ...]
