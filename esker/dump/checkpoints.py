"""Lists the checkpoints in log directories, and inspects one.

A node may be at work in the directory: nothing is written, and a file that goes away between two
looks is passed over. Listing reads the first batch of each file only, so that a gigabyte is listed
as fast as a kilobyte; that the rest is what it should be is proved by reading it all (`inspect`, or
`survey` with `verify`).

Source: KIP-630, Snapshot Format; `snapshot.names` for what the names mean.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from esker.dump.batches import MALFORMED, NOT_METADATA, decode_records
from esker.dump.items import RecordItem, Tally
from esker.dump.small import ReadOnly
from raft.segments.files import Mode
from raft.segments.recovery_point import RECOVERY_POINT_FILE, read_log_state
from raft.segments.segment import LOG_SUFFIX
from records.batch import Batch
from records.errors import RecordError
from records.types import Offset, OffsetAndEpoch
from snapshot.encoder import MAX_BATCH_BYTES
from snapshot.errors import DamagedFileError
from snapshot.framing import Checkpoint, Framing
from snapshot.names import DELETED_SUFFIX, parse_checkpoint_name, parse_part_name
from snapshot.reader import CheckpointReader, strangeness
from snapshot.stream import iter_file_batches

DAMAGED_CHECKPOINT: Final = (
    "stop its node; if its log begins at 0 or at another whole checkpoint, delete the file, "
    "else replace the disk (esker storage format --rejoin)"
)
"""Remedy for a damaged checkpoint."""

_MAX_TYPES: Final = 200  # told apart in one checkpoint; we know some fifty


class State(Enum):
    """The state of a checkpoint file by its name and the bytes that were read."""

    WHOLE = "whole"  # under its final name; whether all its bytes are sound is another question
    PART = "part"  # being written or fetched, or left by a process that died
    DELETED = "deleted"  # dropped; its bytes go once no reader has it open
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One checkpoint file."""

    path: Path
    snapshot_id: OffsetAndEpoch
    state: State
    size_bytes: int
    written_ms: int  # when the file was last written, ms since 1970
    last_timestamp: int | None  # of the last record it covers, ms since 1970; None: not read
    record_count: int | None = None  # metadata records; known after verification only
    damage: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFiles:
    """The disk space of one group's directory."""

    path: Path
    log_start_offset: Offset | None  # None where no node of ours keeps the log
    segment_count: int
    segment_bytes: int
    checkpoints: tuple[Found, ...]  # by end offset

    @property
    def name(self) -> str:
        """Return the name of the files' partition as `topic-partition`."""
        return self.path.name


class NoGroupError(Exception):
    """The directory holds neither checkpoints nor a log; the message says which to name."""


def survey(directories: Iterable[Path], *, verify: bool = False) -> list[GroupFiles]:
    """List the checkpoints in nodes' log directories or in single groups' directories.

    Args:    verify: read every whole checkpoint to its end, decoding nothing.
    Raises:  NoGroupError; OSError.
    """
    groups: list[GroupFiles] = []
    for directory in directories:
        if _is_group(directory):
            paths = [directory]
        else:
            paths = sorted(one for one in directory.iterdir() if one.is_dir() and _is_group(one))
        if not paths:
            raise NoGroupError(
                f"{directory}: no log and no checkpoint here; name a node's log directory "
                "(log.dirs)"
            )
        groups += [_group(path, verify=verify) for path in paths]
    return groups


def _is_group(directory: Path) -> bool:
    return any(
        one.name.endswith(LOG_SUFFIX) or _identify(one) is not None for one in directory.iterdir()
    )


def _identify(path: Path) -> tuple[OffsetAndEpoch, State] | None:
    """Return a checkpoint's id and whether its file is whole, partial or deleted, by its name."""
    if snapshot_id := parse_checkpoint_name(path.name):
        return snapshot_id, State.WHOLE
    if snapshot_id := parse_part_name(path.name):
        return snapshot_id, State.PART
    if path.name.endswith(DELETED_SUFFIX) and (
        snapshot_id := parse_checkpoint_name(path.name.removesuffix(DELETED_SUFFIX))
    ):
        return snapshot_id, State.DELETED
    return None


def _group(directory: Path, *, verify: bool) -> GroupFiles:
    sizes, found = [], []
    for path in directory.iterdir():
        try:
            if path.name.endswith(LOG_SUFFIX):
                sizes.append(path.stat().st_size)
            elif identified := _identify(path):
                found.append(_look(path, *identified, verify=verify))
        except FileNotFoundError:
            continue  # its node has just dropped or renamed it
    return GroupFiles(
        path=directory.absolute(),
        log_start_offset=_log_start(directory),
        segment_count=len(sizes),
        segment_bytes=sum(sizes),
        checkpoints=tuple(sorted(found, key=lambda one: (one.snapshot_id, one.path.name))),
    )


def _log_start(directory: Path) -> Offset | None:
    if not (directory / RECOVERY_POINT_FILE).exists():
        return None
    try:
        return read_log_state(ReadOnly(), directory).log_start_offset
    except (RecordError, FileNotFoundError):
        return None


def _look(path: Path, snapshot_id: OffsetAndEpoch, state: State, *, verify: bool) -> Found:
    """Read a checkpoint's first batch, or all of a complete checkpoint if `verify` is set."""
    stat = path.stat()
    preamble, checkpoint, damage = None, None, None
    file = ReadOnly().open(path, Mode.READ)
    try:
        framing = Framing(path, size_bytes=file.size(), epoch=snapshot_id.epoch)
        for batch in iter_file_batches(file, path, max_batch_bytes=MAX_BATCH_BYTES):
            framing.take(batch)
            preamble = framing.preamble
            if not (verify and state is State.WHOLE):
                break
        if preamble is None or (verify and state is State.WHOLE):
            checkpoint = framing.finish()
    except DamagedFileError as error:
        if state is not State.PART:  # that a part ends in its middle is no news
            state, damage = State.DAMAGED, f"position {error.position}: {error.reason}"
    finally:
        file.close()
    return Found(
        path=path.absolute(),
        snapshot_id=snapshot_id,
        state=state,
        size_bytes=stat.st_size,
        written_ms=stat.st_mtime_ns // 1_000_000,
        last_timestamp=preamble.last_timestamp if preamble else None,
        record_count=checkpoint.record_count if checkpoint else None,
        damage=damage,
    )


# --- one checkpoint ------------------------------------------------------------------------------


@dataclass(slots=True)
class TypeTally:
    """The number and bytes of one type of record in a checkpoint."""

    records: int = 0
    value_bytes: int = 0


@dataclass(slots=True)
class Inspection:
    """A whole checkpoint with its records counted by type."""

    checkpoint: Checkpoint
    snapshot_id: OffsetAndEpoch | None  # None: its name says nothing (`bootstrap.checkpoint`)
    by_type: dict[str, TypeTally] = field(default_factory=dict)  # the largest first


def inspect(path: Path) -> Inspection:
    """Read a checkpoint to its end, decoding every record.

    Raises:  DamagedFileError at the first thing that is wrong; OSError.
    """
    by_type: dict[str, TypeTally] = {}
    tally = Tally()
    with CheckpointReader(ReadOnly(), path) as reader:
        for batch in reader.batches():
            if batch.header.is_control:
                continue
            for item in decode_records(path, batch, tally):
                _check(path, batch, item)
                name = type(item.message).__name__ if item.message is not None else str(item.note)
                if name not in by_type and len(by_type) >= _MAX_TYPES:
                    name = "other"
                found = by_type.setdefault(name, TypeTally())
                found.records += 1
                found.value_bytes += len(item.record.value or b"")
        checkpoint = reader.checkpoint
    assert checkpoint is not None, f"{path} was not read to its end"
    identified = _identify(path)
    ordered = sorted(by_type.items(), key=lambda one: (-one[1].value_bytes, one[0]))
    return Inspection(checkpoint, identified[0] if identified else None, dict(ordered))


def _check(path: Path, batch: Batch, item: RecordItem) -> None:
    """Raise DamagedFileError for a record that a node could not load."""
    reason = strangeness(batch, item.record)
    if reason is None and item.note is not None:
        wrong = item.note.startswith(MALFORMED) or item.note == NOT_METADATA
        reason = item.note if wrong else None
    if reason is not None:
        raise DamagedFileError(
            path=path, position=batch.position, offset=item.record.offset, reason=reason
        )
