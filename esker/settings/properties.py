"""Reads Java's `.properties` files, the format of Kafka's configuration.

One setting a line, `key=value` (`:` or white space separate too), comments after `#` or `!`, a
backslash at the end continues the line, `\\t`, `\\n`, `\\uXXXX` and `\\:` are escapes. The last
value of a key holds, as in Java; a caller can ask for the keys that are given more than once,
because the other values are rarely meant to be there.

Source: java.util.Properties, load.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_KEY: Final = re.compile(r"(?:\\.|[^\s=:\\])*")
_SEPARATOR: Final = re.compile(r"\s*[=:]?\s*")
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_NAMED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class PropertiesError(Exception):
    """A line is not a setting; the message names file and line."""


def read_properties(path: Path, repeated: list[str] | None = None) -> dict[str, str]:
    """Return the settings of a properties file, in the file's order.

    Args:    repeated: gets the keys that are given more than once.
    Raises:  PropertiesError; OSError if the file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise PropertiesError(f"{path}: not UTF-8 at byte {error.start}") from None
    return parse_properties(text, source=str(path), repeated=repeated)


def parse_properties(
    text: str, *, source: str, repeated: list[str] | None = None
) -> dict[str, str]:
    """Return the settings in a text; error messages name the text as `source`.

    Args:  repeated: gets the keys that are given more than once.

    >>> parse_properties("# who\\nnode.id = 1\\nlog.dirs=/a,\\\\\\n  /b", source="x")
    {'node.id': '1', 'log.dirs': '/a,/b'}
    """
    settings: dict[str, str] = {}
    for number, line in _logical_lines(text):
        key_end = _KEY.match(line)
        assert key_end is not None, "the pattern matches the empty string"
        key = _unescape(key_end.group())
        value = line[_separator_end(line, key_end.end()) :]
        if not key:
            raise PropertiesError(f"{source}, line {number}: no key before {line[:20]!r}")
        if key in settings and repeated is not None and key not in repeated:
            repeated.append(key)
        settings[key] = _unescape(value).rstrip()
    return settings


def _separator_end(line: str, start: int) -> int:
    match = _SEPARATOR.match(line, start)
    return match.end() if match else start


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Yield each logical line with its line number, without blank lines and comments."""
    lines: list[tuple[int, str]] = []
    pending: tuple[int, str] | None = None
    for number, physical in enumerate(text.splitlines(), start=1):
        line = physical.lstrip()
        if pending is None and (not line or line[0] in "#!"):
            continue
        first, joined = (number, line) if pending is None else (pending[0], pending[1] + line)
        backslashes = len(joined) - len(joined.rstrip("\\"))
        if backslashes % 2:
            pending = (first, joined[:-1])
        else:
            lines.append((first, joined))
            pending = None
    if pending is not None:
        lines.append(pending)
    return lines


def _unescape(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        code = match.group(1)
        if code[0] == "u" and len(code) == 5:
            return chr(int(code[1:], 16))
        return _NAMED.get(code, code)

    return _ESCAPE.sub(replace, text)
