"""Errors that say what is wrong with a file of record batches, and at which position.

Both are `RecordError`s: the bytes are bad, and reading them again will not help.
"""

from __future__ import annotations

from pathlib import Path

from records.errors import RecordError


class DamagedFileError(RecordError):
    """A file that contradicts itself, its checksums or its format.

    `position` is the byte where the batch at fault begins; `offset` the record offset expected or
    claimed there, None where nothing can be said.
    """

    def __init__(
        self, *, path: Path, position: int, reason: str, offset: int | None = None
    ) -> None:
        where = f"{path}, position {position}"
        if offset is not None:
            where += f", offset {offset}"
        super().__init__(f"{where}: {reason}")
        self.path = path
        self.position = position
        self.offset = offset
        self.reason = reason


class TruncatedFileError(DamagedFileError):
    """The file ends inside a batch or before its footer; it may still be growing."""
