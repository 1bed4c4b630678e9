"""Reads index files and the small files beside a log as items.

They are read with the log's own readers where those exist. Nothing here opens a file for writing,
also where a reader would: `ReadOnly` sees to it.

Source: KIP-33 (time index); KIP-101 (leader epochs); KIP-595 (quorum-state).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from esker.dump.items import Entry, FileEnd, FileStart, Item, Tally
from esker.dump.kinds import Kind, base_offset_of
from raft.segments.epochs import read_epochs
from raft.segments.errors import CorruptFileError
from raft.segments.files import File, Mode, RealFileSystem, read_small_file
from raft.segments.index import OffsetIndex, TimeIndex
from raft.segments.properties import (
    read_meta_properties,
    read_partition_metadata,
    read_quorum_state,
)
from raft.segments.recovery_point import read_log_state
from records.batch import HEADER_SIZE_BYTES, parse_header
from records.errors import RecordError
from snapshot.errors import DamagedFileError, TruncatedFileError

MAX_INDEX_BYTES: Final = 64 * 1024 * 1024
"""Far above what a segment of 2 GiB needs at the default interval."""


class ReadOnly(RealFileSystem):
    """The operating system's files, opened for reading in every mode."""

    def open(self, path: Path, mode: Mode) -> File:  # noqa: ARG002 (that is its point)
        return super().open(path, Mode.READ)


def read_small(files: ReadOnly, path: Path, kind: Kind) -> Iterator[Item]:
    """Yield the entries of an index or other file that does not consist of batches.

    Raises:  DamagedFileError, CorruptFileError, OSError.
    """
    start = FileStart(path, kind, _size(files, path))
    tally = Tally()
    yield start
    for entry in _READERS[kind](files, path, tally):
        tally.entries += 1
        yield entry
    yield FileEnd(start, tally)


def count_entries(files: ReadOnly, path: Path, kind: Kind, tally: Tally) -> None:
    """Count the entries of a file without batches. Raises the errors of `read_small`."""
    for _ in _READERS[kind](files, path, tally):
        tally.entries += 1


def _size(files: ReadOnly, path: Path) -> int:
    file = files.open(path, Mode.READ)
    try:
        return file.size()
    finally:
        file.close()


class _IndexEntry(NamedTuple):
    """One entry of either index: its position and its values."""

    at: int
    offset: int
    target: int  # a position in the log, or a timestamp


def _index_entries(files: ReadOnly, path: Path, kind: Kind, tally: Tally) -> Iterator[_IndexEntry]:
    """Yield an index's entries in order, skipping the unused space of an open index.

    Raises:  DamagedFileError where entries do not rise, TruncatedFileError inside the last one.
    """
    layout = (OffsetIndex if kind is Kind.OFFSET_INDEX else TimeIndex).FORMAT
    base = base_offset_of(path) or 0
    data = read_small_file(files, path, limit_bytes=MAX_INDEX_BYTES)
    if len(data) > MAX_INDEX_BYTES:
        raise DamagedFileError(path=path, position=0, reason=f"over {MAX_INDEX_BYTES} bytes")
    whole = len(data) - len(data) % layout.size
    used = -(-len(data.rstrip(b"\0")) // layout.size) * layout.size
    if used < whole:
        tally.remarks.append(f"{whole - used} bytes of preallocated room")
    previous: _IndexEntry | None = None
    for at in range(0, min(used, whole), layout.size):
        first, second = layout.unpack_from(data, at)
        relative, target = (first, second) if kind is Kind.OFFSET_INDEX else (second, first)
        entry = _IndexEntry(at, base + relative, target)
        if relative < 0 or (previous is not None and not _rises(previous, entry, kind)):
            reason = f"entry {entry.offset} -> {target} does not rise"
            raise DamagedFileError(path=path, position=at, offset=entry.offset, reason=reason)
        previous = entry
        yield entry
    if whole < len(data):
        raise TruncatedFileError(path=path, position=whole, reason="ends inside an entry")


def _rises(previous: _IndexEntry, entry: _IndexEntry, kind: Kind) -> bool:
    if kind is Kind.OFFSET_INDEX:
        return entry.offset > previous.offset and entry.target > previous.target
    return entry.offset >= previous.offset and entry.target > previous.target


def _offset_index(files: ReadOnly, path: Path, tally: Tally) -> Iterator[Entry]:
    for entry in _checked_by_log(files, path, tally):
        yield Entry("offsetIndexEntry", {"offset": entry.offset, "position": entry.target})


def _checked_by_log(files: ReadOnly, path: Path, tally: Tally) -> Iterator[_IndexEntry]:
    """Yield an offset index's entries, each checked against the segment if the file exists.

    Raises:  DamagedFileError for an entry that does not point at the start of a batch at or before
             its offset.
    """
    log = path.with_name(path.name.replace(".index", ".log"))
    entries = _index_entries(files, path, Kind.OFFSET_INDEX, tally)
    try:
        file = files.open(log, Mode.READ)
    except FileNotFoundError:
        tally.remarks.append("no segment beside it to compare with")
        yield from entries
        return
    try:
        for entry in entries:
            reason = _contradiction(file, log, entry)
            if reason is not None:
                raise DamagedFileError(
                    path=path, position=entry.at, offset=entry.offset, reason=reason
                )
            yield entry
    finally:
        file.close()


def _contradiction(file: File, log: Path, entry: _IndexEntry) -> str | None:
    if entry.target < 0:
        return f"points to byte {entry.target} of {log.name}"
    try:
        header = parse_header(file.read(entry.target, HEADER_SIZE_BYTES))
    except RecordError:
        return f"points to byte {entry.target} of {log.name}, where no batch begins"
    if header.base_offset > entry.offset:
        return f"points to a batch at offset {header.base_offset} of {log.name}"
    return None


def _time_index(files: ReadOnly, path: Path, tally: Tally) -> Iterator[Entry]:
    for entry in _index_entries(files, path, Kind.TIME_INDEX, tally):
        yield Entry("timeIndexEntry", {"timestamp": entry.target, "offset": entry.offset})


def _epochs(files: ReadOnly, path: Path, tally: Tally) -> Iterator[Entry]:  # noqa: ARG001
    for entry in read_epochs(files, path.parent):
        yield Entry("epoch", {"epoch": entry.epoch, "startOffset": entry.start_offset})


def _quorum_state(files: ReadOnly, path: Path, tally: Tally) -> Iterator[Entry]:  # noqa: ARG001
    state = read_quorum_state(files, path.parent)
    if state is None:
        raise CorruptFileError(path=path, reason="vanished while it was read")
    yield Entry(
        "quorumState",
        {
            "leaderEpoch": state.epoch,
            "leaderId": state.leader_id,
            "votedId": state.voted_id,
            "votedDirectoryId": state.voted_directory_id,
            "currentVoters": state.voters,
        },
    )


def _partition_metadata(files: ReadOnly, path: Path, tally: Tally) -> Iterator[Entry]:  # noqa: ARG001
    yield Entry("partitionMetadata", {"topicId": read_partition_metadata(files, path.parent)})


def _meta_properties(files: ReadOnly, path: Path, tally: Tally) -> Iterator[Entry]:  # noqa: ARG001
    meta = read_meta_properties(files, path.parent)
    yield Entry(
        "metaProperties",
        {
            "clusterId": meta.cluster_id,
            "nodeId": meta.node_id,
            "directoryId": meta.directory_id,
        },
    )


def _recovery_point(files: ReadOnly, path: Path, tally: Tally) -> Iterator[Entry]:  # noqa: ARG001
    state = read_log_state(files, path.parent)
    yield Entry(
        "recoveryPoint",
        {
            "logStartOffset": state.log_start_offset,
            "recoveryPoint": state.recovery_point,
            "floor": state.floor,
            "resetting": state.resetting,
        },
    )


_READERS: Final[dict[Kind, Callable[[ReadOnly, Path, Tally], Iterator[Entry]]]] = {
    Kind.OFFSET_INDEX: _offset_index,
    Kind.TIME_INDEX: _time_index,
    Kind.EPOCHS: _epochs,
    Kind.QUORUM_STATE: _quorum_state,
    Kind.PARTITION_METADATA: _partition_metadata,
    Kind.META_PROPERTIES: _meta_properties,
    Kind.RECOVERY_POINT: _recovery_point,
}
