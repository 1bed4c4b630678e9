"""Reads the users of `esker storage format --add-scram`.

Each controller formats for itself and must write the same records. So a salt that is not given is
derived from the cluster id, the mechanism and the user, not drawn. It differs between users and
clusters, which is all that a salt is for. The trap: it must not be derived from the password, for a
server shows the salt to everybody who names the user, and so would help to guess the password.

Source: KIP-900; upstream's Formatter and ScramParser.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import typer

from raft.net.scram import MAX_ITERATIONS, MIN_ITERATIONS, SCRAM
from records.metadata import UserScramCredentialRecord

OPTION: Final = "--add-scram"
_FORM: Final = re.compile(r"(SCRAM-SHA-(?:256|512))=\[(.*)\]", re.DOTALL)
_PART: Final = re.compile(r'\s*([a-z-]+)=("(?:[^"])*"|[^,]*)\s*(?:,|$)')
_KEYS: Final = frozenset({"name", "password", "password-file", "iterations", "salt"})
SALT_BYTES: Final = 24


def parse_users(texts: Sequence[str], cluster_id: str) -> tuple[UserScramCredentialRecord, ...]:
    """Return the credentials of `--add-scram`. Raises typer.BadParameter, which shows no secret."""
    records = [_parse_user(text, cluster_id) for text in texts]
    if len({(record.name, record.mechanism) for record in records}) < len(records):
        raise _wrong("names a user's mechanism twice")
    return tuple(records)


def _wrong(reason: str) -> typer.BadParameter:
    return typer.BadParameter(reason, param_hint=OPTION)


def _parse_user(text: str, cluster_id: str) -> UserScramCredentialRecord:
    form = _FORM.fullmatch(text)
    if form is None:
        raise _wrong(
            "is MECHANISM=[name=NAME,password-file=FILE], MECHANISM a SCRAM-SHA-256 or 512"
        )
    parts = _parts(form[2])
    name, password = parts.get("name", ""), _password(parts)
    if not name:
        raise _wrong("names no user: name=NAME")
    iterations = parts.get("iterations", str(MIN_ITERATIONS))
    if not iterations.isdecimal() or not MIN_ITERATIONS <= int(iterations[:9]) <= MAX_ITERATIONS:
        raise _wrong(f"iterations are {MIN_ITERATIONS} to {MAX_ITERATIONS}")
    scram = SCRAM[form[1]]
    if "salt" in parts:
        try:
            salt = base64.b64decode(parts["salt"], validate=True)
        except (binascii.Error, ValueError):
            raise _wrong("salt is base64") from None
    else:
        seed = f"{cluster_id}\0{scram.mechanism}\0{name}".encode()
        salt = hashlib.sha256(seed).digest()[:SALT_BYTES]
    salted = scram.salt_password(password, salt, int(iterations))
    credential = scram.credential(salted, salt, int(iterations))
    return UserScramCredentialRecord(
        name=name,
        mechanism=scram.number,
        salt=salt,
        stored_key=credential.stored_key,
        server_key=credential.server_key,
        iterations=credential.iterations,
    )


def _parts(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None or part[1] not in _KEYS or part[1] in found:
            raise _wrong(f"has the parts {', '.join(sorted(_KEYS))}, each once")
        value = part[2].strip()
        quoted = len(value) > 1 and value[0] == value[-1] == '"'
        found[part[1]] = value[1:-1] if quoted else value
        at = part.end()
    return found


def _password(parts: dict[str, str]) -> str:
    """Return the password of a `--add-scram` value, given directly or in a named file."""
    if ("password" in parts) == ("password-file" in parts):
        raise _wrong("has either password=PASSWORD or password-file=FILE")
    password = parts.get("password", "")
    if "password-file" in parts:
        path = Path(parts["password-file"])
        try:
            password = path.read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8"
            raise _wrong(f"{path}: {reason}") from None
    if not password:
        raise _wrong("has an empty password")
    return password
