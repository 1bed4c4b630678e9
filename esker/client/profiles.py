"""Profiles of the command line: named sets of Kafka's client properties in one TOML file.

    profile = "prod"                                # of commands that name none; may be left out

    [profiles.prod]
    bootstrap.servers = "broker-1:9092,broker-2:9092"

    [profiles.quorum]
    bootstrap.controllers = "controller-1:9093"

The file is that of ESKER_CONFIG, else esker/config.toml below XDG_CONFIG_HOME or ~/.config. The
whole file is validated whenever it is read, so that a mistyped property is not found on the day on
which its profile is needed.

Source: docs/commands.md.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from esker.settings.values import parse_endpoint

CONFIG_VARIABLE: Final = "ESKER_CONFIG"
PROFILE_VARIABLE: Final = "ESKER_PROFILE"
SERVERS: Final = "bootstrap.servers"
CONTROLLERS: Final = "bootstrap.controllers"
PROPERTIES: Final = (SERVERS, CONTROLLERS)
MAX_BYTES: Final = 1024 * 1024
MAX_LINE: Final = 2_000
"""Letters of a line; the parser takes memory for the square of the parts of a dotted key."""

_DEFAULT: Final = "profile"
_PROFILES: Final = "profiles"
_TABLE: Final = re.compile(r"\s*\[([^\[\]]+)\]")
_ONE_LINE: Final = re.compile(r"""[^=]*=\s*("[^"\\]*"|'[^']*')""")
_ENTRY: Final = re.compile(r"\s*([^=\s#\[][^=#]*?)\s*=")
_AT_LINE: Final = re.compile(r" \(at line (\d+), column \d+\)$")


class ProfileError(Exception):
    """A profile or its file cannot be used; the message names the file, and the line if known."""


@dataclass(frozen=True, slots=True)
class Profiles:
    """The properties of each profile by name, and the profile of commands that name none."""

    path: Path
    default: str | None = None
    by_name: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def chosen(self, option: str | None = None) -> str | None:
        """Return the profile name in `option`, else in ESKER_PROFILE, else in the profiles file."""
        return option or os.environ.get(PROFILE_VARIABLE) or self.default

    def __getitem__(self, name: str) -> Mapping[str, str]:
        """Return the properties of a profile. Raises ProfileError if no such profile exists."""
        if name not in self.by_name:
            known = f"it has {', '.join(self.by_name)}" if self.by_name else "it has none"
            raise ProfileError(f"{self.path}: no profile {name!r}: {known}")
        return self.by_name[name]


def config_path() -> Path:
    """Return the path of the file with the profiles, which need not exist."""
    if named := os.environ.get(CONFIG_VARIABLE):
        return Path(named)
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "esker" / "config.toml"


def read_profiles() -> Profiles:
    """Read and validate all profiles of the profiles file, if it exists. Raises ProfileError."""
    path = config_path()
    text = _read(path)
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > MAX_LINE:
            raise ProfileError(f"{path}:{number}: a line of over {MAX_LINE} letters")
    try:
        document = tomllib.loads(text)
        by_name = _validate(path, text, document)
    except RecursionError:
        raise ProfileError(f"{path}: tables are nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        at = _AT_LINE.search(str(error))
        where = f"{path}:{at[1]}" if at else str(path)
        raise ProfileError(f"{where}: {_AT_LINE.sub('', str(error))}") from None
    return Profiles(path, document.get(_DEFAULT), by_name)


def _validate(path: Path, text: str, document: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Validate a profiles file and return each profile's properties. Raises ProfileError."""
    for key in document.keys() - {_DEFAULT, _PROFILES}:
        known = "the file has profile and [profiles.NAME]"
        raise _error(path, text, (key,), f"unknown key {key}: {known}")
    tables = document.get(_PROFILES, {})
    if not isinstance(tables, dict):
        raise _error(path, text, (_PROFILES,), "profiles is not a table [profiles.NAME]")
    by_name = {name: _properties(path, text, name, table) for name, table in tables.items()}
    default = document.get(_DEFAULT)
    if default is not None and (not isinstance(default, str) or default not in by_name):
        raise _error(path, text, (_DEFAULT,), f"profile = {default!r} is no profile of this file")
    return by_name


def set_default_profile(name: str) -> Path:
    """Set the profile of commands that name no profile, in the file. Raises ProfileError."""
    profiles = read_profiles()
    profiles[name]  # it is there
    path, text = profiles.path, _read(profiles.path)
    line = f"{_DEFAULT} = {json.dumps(name, ensure_ascii=False)}"  # a JSON string is a TOML string
    lines = text.split("\n")
    if profiles.default is None:
        lines.insert(0, line)
    else:
        number = _line_of(text, (_DEFAULT,))
        former = _ONE_LINE.match(lines[number - 1])
        lines[number - 1] = line + (lines[number - 1][former.end() :] if former else "")
        if not _has_default("\n".join(lines), name):
            advice = f"change it by hand to {line}"
            raise ProfileError(f"{path}:{number}: profile is not a string on one line: {advice}")
    file = path.resolve()  # a link stays one
    fresh = file.with_name(f"{file.name}.new")
    try:
        fresh.write_bytes("\n".join(lines).encode())
        fresh.replace(file)
    except OSError as error:
        raise ProfileError(f"{path}: {error.strerror}") from None
    return path


def _has_default(text: str, name: str) -> bool:
    """Return whether a text is a TOML file whose default profile has this name."""
    try:
        return tomllib.loads(text).get(_DEFAULT) == name
    except tomllib.TOMLDecodeError:
        return False


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ProfileError(f"{path}: larger than {MAX_BYTES} bytes: is it the right file?")
        return data.decode()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ProfileError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ProfileError(f"{path}: not UTF-8 text: is it the right file?") from None


def _properties(path: Path, text: str, name: str, table: Any) -> dict[str, str]:
    """Validate a profile and return its properties under Kafka's dotted names."""
    if not isinstance(table, dict):
        raise _error(path, text, (_PROFILES, name), f"profile {name} is not a table")
    found = {}
    for keys, value in _flatten(table):
        key = ".".join(keys)
        where = (_PROFILES, name, *keys)
        if key not in PROPERTIES:
            known = " and ".join(PROPERTIES)
            raise _error(path, text, where, f"unknown property {key[:80]}: a profile has {known}")
        if not isinstance(value, str):
            raise _error(path, text, where, f"{key} is not a string of HOST:PORT addresses")
        try:
            for part in value.split(","):
                parse_endpoint(part.strip())
        except ValueError as error:
            raise _error(path, text, where, f"{key}: {error}") from None
        found[key] = value
    if not found:
        needed = " or ".join(PROPERTIES)
        message = f"profile {name} has no addresses: give it {needed}"
        raise _error(path, text, (_PROFILES, name), message)
    return found


def _flatten(table: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[Any, Any]]:
    """Yield the keys and the value of each entry of a TOML table and of its nested tables."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, (*above, key))
        else:
            yield (*above, key), value


def _error(path: Path, text: str, keys: tuple[str, ...], message: str) -> ProfileError:
    return ProfileError(f"{path}:{_line_of(text, keys)}: {message}")


def _line_of(text: str, keys: tuple[str, ...]) -> int:
    """Return the number of the line that sets a key, or else of the nearest enclosing table."""
    table: tuple[str, ...] = ()
    best, line = -1, 1
    for number, content in enumerate(text.split("\n"), 1):
        if header := _TABLE.match(content):
            found = table = _split(header[1])
        elif entry := _ENTRY.match(content):
            found = (*table, *_split(entry[1]))
        else:
            continue
        common = sum(1 for one, other in zip(found, keys, strict=False) if one == other)
        if found[:common] == keys[:common] and common > best:
            best, line = common, number
    return line


def _split(dotted: str) -> tuple[str, ...]:
    """Split a TOML key at its dots.

    >>> _split('profiles."a.b".bootstrap')
    ('profiles', 'a.b', 'bootstrap')
    """
    try:
        ((keys, _),) = _flatten(tomllib.loads(f"{dotted} = 0"))
    except (tomllib.TOMLDecodeError, ValueError):  # a line inside a string
        return ()
    return tuple(keys)
