"""Parses the `NAME=LEVEL` options of `esker features` and `esker storage format`."""

from __future__ import annotations

from typing import Final

import typer

from records.features import SUPPORTED, missing_dependency, new_levels

OPTION: Final = "--feature"
HIGHEST: Final = 32_767  # a level is an int16


def parse_levels(texts: list[str]) -> dict[str, int]:
    """Parse the values of --feature in order. Raises typer.BadParameter naming the option.

    >>> parse_levels(["esker.version=2", "group.version=0"])
    {'esker.version': 2, 'group.version': 0}
    """
    levels: dict[str, int] = {}
    for text in texts:
        name, _, level = (part.strip() for part in text.partition("="))
        if not name or not (level.isascii() and level.isdecimal()) or int(level[:6]) > HIGHEST:
            raise typer.BadParameter(
                f"{text!r} is not NAME=LEVEL with a level from 0 to {HIGHEST}", param_hint=OPTION
            )
        if name in levels:
            raise typer.BadParameter(f"{name} is given twice", param_hint=OPTION)
        levels[name] = int(level)
    return levels


def check_supported(levels: dict[str, int]) -> None:
    """Check that this version of Esker supports the levels. Raises typer.BadParameter."""
    for name, level in levels.items():
        if name not in SUPPORTED:
            raise typer.BadParameter(
                f"unknown feature {name!r}: this version of Esker has {', '.join(SUPPORTED)}",
                param_hint=OPTION,
            )
        if level not in SUPPORTED[name]:
            lowest, highest = SUPPORTED[name]
            raise typer.BadParameter(
                f"this version of Esker supports {name} {lowest} to {highest}, not {level}",
                param_hint=OPTION,
            )
    resulting = new_levels(levels)
    for name in levels:
        lacking = missing_dependency(name, resulting)
        if lacking is not None:
            raise typer.BadParameter(lacking, param_hint=OPTION)
