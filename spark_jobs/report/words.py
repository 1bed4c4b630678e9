"""Formats numbers and names for people. Every text that comes from a log goes through `plain`.

Source: docs/design/pipeline.md#the-report; SI prefixes, as prices are for a GB of 10^9 bytes.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

LONGEST_NAME: Final = 40

_UNITS: Final = ((10**15, "PB"), (10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (1000, "kB"))
_COUNTS: Final = ((10**9, " G"), (10**6, " M"), (10_000, " k"))
_TIMES: Final = (
    (365 * 86_400_000, "y"), (86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"),
)  # fmt: skip


def plain(text: str) -> str:
    r"""Shorten a name from a log and replace its unprintable characters, without escaping HTML.

    >>> plain("a\x00b" + "x" * 50)
    'a·bxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…'
    """
    clean = "".join(letter if letter.isprintable() else "·" for letter in text[: LONGEST_NAME + 1])
    return clean if len(clean) <= LONGEST_NAME else clean[: LONGEST_NAME - 1] + "…"


def size(size_bytes: float) -> str:
    """Format a size in bytes with a readable unit.

    >>> size(0), size(999), size(1234), size(56_700_000), size(1.5e12)
    ('0 B', '999 B', '1.2 kB', '57 MB', '1.5 TB')
    """
    for unit, name in _UNITS:
        if size_bytes >= unit * 0.9995:
            return f"{_short(size_bytes / unit)} {name}"
    return f"{size_bytes:.0f} B"


def count(number: float) -> str:
    """Format a number with a unit such as k or M.

    >>> count(7), count(9999), count(12_345), count(1_234_567), count(0.25)
    ('7', '9,999', '12 k', '1.2 M', '0.25')
    """
    for unit, name in _COUNTS:
        if number >= unit:
            return f"{_short(number / (1000 if name == ' k' else unit))}{name}"
    return f"{number:,.0f}" if number >= 10 or number == int(number) else f"{number:.2g}"


def duration(ms: float) -> str:
    """Format a duration in ms with a readable unit.

    >>> duration(3), duration(1500), duration(90_000), duration(7 * 86_400_000)
    ('3 ms', '1.5 s', '1.5 min', '7 d')
    """
    for unit, name in _TIMES:
        if ms >= unit:
            return f"{_short(ms / unit)} {name}"
    return f"{ms:.0f} ms" if ms >= 1 or not ms else f"{ms:.1g} ms"


def share(part: float, whole: float) -> str:
    """Format the share of `part` in `whole` as a percentage.

    >>> share(1, 3), share(0, 3), share(1, 100_000), share(2_999, 3_000), share(1, 0)
    ('33 %', '0 %', 'under 0.1 %', 'over 99.9 %', '0 %')
    """
    per_cent = 100 * part / whole if whole else 0.0
    if 0 < per_cent < 0.1:
        return "under 0.1 %"
    if 99.9 < per_cent < 100:
        return "over 99.9 %"
    return f"{per_cent:.1f} %" if 0 < per_cent < 10 else f"{per_cent:.0f} %"


def instant(time_ms: int) -> str:
    """Format a time in ms since 1970 as a date and time in UTC.

    >>> instant(1_700_000_000_000)
    '2023-11-14 22:13:20 UTC'
    """
    try:
        time = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"
    return time.strftime("%Y-%m-%d %H:%M:%S UTC")


def list_names(names: list[str], limit: int = 3) -> str:
    """Join up to `limit` names with commas and `and`, and state the number of the other names.

    >>> list_names(["a"]), list_names(["a", "b"]), list_names(["a", "b", "c", "d"])
    ('a', 'a and b', 'a, b, c and 1 more')
    """
    shown = names[:limit]
    if len(names) > limit:
        return f"{', '.join(shown)} and {len(names) - limit} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown)


def _short(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0") if number < 9.95 else f"{number:,.0f}"
