"""`replication-offset-checkpoint`: the high watermarks of a node's logs, for readers of its files.

    0
    2
    __cluster_metadata 0 8121
    __diskless-metadata 0 104213

A version, a count, a line for each log. The file is old by some seconds whenever it is read, and
that is harmless: a high watermark only rises, so what it says is committed is so for ever. The log
beside it may end earlier, after a crash; a reader takes the smaller of the two.

Source: Kafka's own file of this name (OffsetCheckpointFile, version 0), which KRaft's metadata log
never got: its readers ask.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from raft.segments.errors import CorruptFileError
from raft.segments.files import FileSystem, Mode, replace_file

HIGH_WATERMARKS_FILE: Final = "replication-offset-checkpoint"
MAX_FILE_BYTES: Final = 16 * 1024 * 1024
_LINE: Final = re.compile(r"(\S{1,249}) (\d{1,9}) (\d{1,18})", re.ASCII)


def write_high_watermarks(
    files: FileSystem, directory: Path, offsets: Mapping[tuple[str, int], int]
) -> None:
    """Replace the file of high watermarks durably.

    Offsets are exclusive, by topic and partition. Raises OSError.
    """
    lines = ["0", str(len(offsets))]
    lines += [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    data = "".join(f"{line}\n" for line in lines).encode()
    replace_file(files, directory / HIGH_WATERMARKS_FILE, data)


def read_high_watermarks(files: FileSystem, directory: Path) -> dict[tuple[str, int], int]:
    """Return the high watermark that the file records for each log.

    Raises:  FileNotFoundError; CorruptFileError; OSError.
    """
    path = directory / HIGH_WATERMARKS_FILE
    file = files.open(path, Mode.READ)
    try:
        size = file.size()
        if size > MAX_FILE_BYTES:
            raise CorruptFileError(path=path, reason=f"{size} bytes, at most {MAX_FILE_BYTES}")
        text = file.read(0, size).decode(errors="replace")
    finally:
        file.close()
    lines = text.splitlines()
    if lines[:1] != ["0"]:
        raise CorruptFileError(path=path, reason=f"version {''.join(lines[:1])!r}, not 0")
    if lines[1:2] != [str(len(lines) - 2)]:
        raise CorruptFileError(path=path, reason=f"not {''.join(lines[1:2])!r} lines after two")
    found = {}
    for line in lines[2:]:
        match = _LINE.fullmatch(line)
        if match is None:
            raise CorruptFileError(path=path, reason=f"{line!r} is no topic, partition and offset")
        found[match[1], int(match[2])] = int(match[3])
    return found
