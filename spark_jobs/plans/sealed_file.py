"""Writes and reads files of rows that are written once and accepted only if they are whole.

    with writing(path, "esker-orphans-plan", header) as rows:
        rows.add({"key": "7f/c/0/12"})
    read = SealedFile(path, "esker-orphans-plan")
    for row in read.rows(): ...

JSON, one object a line: a header, the rows, and a seal with the count and hash of everything before
it. A file appears under its name when it is complete. The whole file is verified before the first
row is returned, so no caller acts on half of a file, or on one that was edited. Neither side holds
more than a line in memory.

Source: docs/design/pipeline.md#plans.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

VERSION: Final = 1
MAX_LINE_BYTES: Final = 1 << 20
ID_DIGITS: Final = 16


class SealError(Exception):
    """A file is not a whole file of the expected kind. One sentence names it."""


class Rows:
    """Rows of a file that is being written; `end` holds what is known only at the end."""

    def __init__(self, file: IO[bytes], header: Mapping[str, Any]) -> None:
        self.end: dict[str, Any] = {}  # goes into the seal, as it is when all rows are written
        self._file = file
        self._hash = hashlib.sha256()
        self._count = 0
        self._line(header)

    def add(self, row: Mapping[str, Any]) -> None:
        """Append one row to the sealed file.

        Raises:  OSError.
        """
        self._line(row)
        self._count += 1

    def seal(self) -> None:
        """Write the file's last line, with its row count and checksum.

        Raises:  OSError.
        """
        seal = {"rows": self._count, "end": self.end}
        self._hash.update(_encode_line(seal))
        self._file.write(_encode_line({**seal, "sha256": self._hash.hexdigest()}))

    def _line(self, what: Mapping[str, Any]) -> None:
        line = _encode_line(what)
        self._hash.update(line)
        self._file.write(line)


def _encode_line(what: Mapping[str, Any]) -> bytes:
    return json.dumps(what).encode() + b"\n"


@contextmanager
def writing_whole(path: Path) -> Iterator[IO[bytes]]:
    """Yield a temporary file, which is renamed to `path` if the block ends without an error.

    Raises:  OSError.
    """
    partial = path.with_name(path.name + ".part")
    try:
        with partial.open("wb") as file:
            yield file
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def writing(path: Path, kind: str, header: Mapping[str, Any]) -> Iterator[Rows]:
    """Write a sealed file in a `with` block; an error in the block leaves no file.

    Raises:  OSError.
    """
    with writing_whole(path) as file:
        rows = Rows(file, {"kind": kind, "version": VERSION, **header})
        yield rows
        rows.seal()


class SealedFile:
    """A whole sealed file; it is verified from front to back when it is opened."""

    def __init__(self, path: Path, kind: str) -> None:
        """Open a sealed file, and verify its kind and checksum.

        Raises:  SealError if it is not a whole file of this kind; OSError.
        """
        self.path = path
        try:
            self._check(kind)
        except (ValueError, KeyError, TypeError) as error:
            raise SealError(f"{path} is not a whole {kind} ({error}): make a new one") from None

    def _check(self, kind: str) -> None:
        digest = hashlib.sha256()
        count, last = -1, b""
        with self.path.open("rb") as file:
            while line := file.readline(MAX_LINE_BYTES):
                if not line.endswith(b"\n"):
                    raise ValueError("its last line is cut off")
                digest.update(last)
                last, count = line, count + 1
                if count == 0:
                    self.header: Mapping[str, Any] = json.loads(line)
        if count < 1:
            raise ValueError("it has no seal")
        if self.header["kind"] != kind:
            raise ValueError(f"it is a {self.header['kind']}")
        if self.header["version"] != VERSION:
            raise ValueError(f"it is of version {self.header['version']}, not {VERSION}")
        seal = json.loads(last)
        hashed = seal.pop("sha256")
        digest.update(_encode_line(seal))
        if seal["rows"] != count - 1 or digest.hexdigest() != hashed:
            raise ValueError("it was changed after it was written, or cut off")
        self.count: int = seal["rows"]
        self.end: Mapping[str, Any] = seal["end"]
        self.file_id: str = hashed[:ID_DIGITS]  # the same for the same contents

    def rows(self, start: int = 0) -> Iterator[dict[str, Any]]:
        """Yield the rows from index `start` on, counted from 0.

        Raises:  OSError.
        """
        with self.path.open("rb") as file:
            file.readline()
            for number in range(self.count):
                line = file.readline()
                if number >= start:
                    yield json.loads(line)
