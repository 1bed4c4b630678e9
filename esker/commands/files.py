"""Reads and writes the small files that commands take, with a bound and one-line errors."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from esker.commands.cluster_access import fail

MAX_FILE_BYTES: Final = 4 * 1024 * 1024


def write_text_or_exit(path: Path, text: str) -> None:
    """Write a file, or end the command with 1 if that fails."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"{path}: {error.strerror}")


def read_text_or_exit(path: Path) -> str:
    """Return a file's text, or end the command with 1 if it is unreadable or over 4 MiB."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        fail(f"{path}: {error.strerror}")
    if len(data) > MAX_FILE_BYTES:
        fail(f"{path}: larger than {MAX_FILE_BYTES} bytes: split it into several files")
    return data.decode("utf-8", "replace")
