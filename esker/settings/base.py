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


@dataclass(frozen=True, slots=True)
class Section:
    """Settings of one thing, as `docs/configuration.md` lists them."""

    title: str
    settings: tuple[Setting, ...]
