"""The manifest of a backup: one cut of all logs, and the objects that hold its bytes.

A manifest is one line of JSON and a line with the SHA-256 of the first. It names every object that
a restore from it needs, and is never changed.

The trap: a reader of this release may meet the manifest of a newer one. The number of the format is
looked at before anything else, so the refusal names the release and no missing member.

Source: docs/design/backup.md#format-of-a-manifest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, NamedTuple
from uuid import UUID

FORMAT: Final = 1
DATA_HEADER: Final = b"esker-backup\0\0\0\x01"
"""The first bytes of a data object: its name, and version 1."""


class BackupError(Exception):
    """A backup that cannot be used; one sentence with the object, the fault and the remedy."""


class NewerFormatError(BackupError):
    """A manifest that a newer release wrote."""


class DataPart(NamedTuple):
    """Bytes of one data object."""

    object: str  # its name below `data/`
    position: int
    size_bytes: int
    sha256: str  # of these bytes, in hex


class BackedUpCheckpoint(NamedTuple):
    """A checkpoint of a log (KIP-630), whose file is cut into parts."""

    end: int  # exclusive; with the epoch its id
    epoch: int
    parts: tuple[DataPart, ...]


class BackedUpRange(NamedTuple):
    """Whole batches of a log: the records [start, end)."""

    start: int
    end: int
    data: DataPart


@dataclass(frozen=True, slots=True, kw_only=True)
class BackedUpLog:
    """One log up to the end of a cut: a checkpoint, and the ranges that follow it without a gap."""

    topic: str
    partition: int
    topic_id: UUID
    end: int  # exclusive
    epoch: int  # of the last record; 0 for an empty log
    checkpoint: BackedUpCheckpoint | None = None  # None: the ranges begin at offset 0
    ranges: tuple[BackedUpRange, ...] = ()

    @property
    def name(self) -> str:
        """Return the name of the log, `topic-partition`."""
        return f"{self.topic}-{self.partition}"

    def parts(self) -> Iterator[DataPart]:
        """Yield all bytes that a restore of this log needs."""
        if self.checkpoint is not None:
            yield from self.checkpoint.parts
        for one in self.ranges:
            yield one.data

    def fault(self) -> str | None:
        """Return how ranges, checkpoint and end contradict each other, or None if they do not."""
        if self.checkpoint is not None and not self.checkpoint.parts:
            return "the checkpoint has no parts"
        covered = 0 if self.checkpoint is None else self.checkpoint.end
        if self.ranges and self.ranges[0].start > covered:
            return f"offsets from {covered} to {self.ranges[0].start} are missing"
        for one, other in pairwise(self.ranges):
            if one.end != other.start:
                return f"a range ends at {one.end}, and the next begins at {other.start}"
        if any(one.start >= one.end for one in self.ranges):
            return "a range is empty"
        last = self.ranges[-1].end if self.ranges else covered
        return None if last == self.end else f"it ends at {last}, not at {self.end}"


class OldestCut(NamedTuple):
    """The oldest manifest that can still be restored, and where its logs end."""

    number: int
    ends: Mapping[str, int]  # exclusive, by the log's name


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One cut of all logs of a cluster."""

    number: int
    cluster_id: str
    broker_id: int
    release: str
    cut: int  # number of the manifest for which these ends were taken; this one's, or an earlier
    began_ms: int  # ms since 1970, by the broker's clock: before the first end was taken
    oldest: OldestCut
    logs: tuple[BackedUpLog, ...]

    @property
    def ends(self) -> dict[str, int]:
        """Return the exclusive end of each log, by the log's name."""
        return {log.name: log.end for log in self.logs}

    @property
    def objects(self) -> set[str]:
        """Return the names of all data objects that a restore from this manifest needs."""
        return {part.object for log in self.logs for part in log.parts()}

    @property
    def size_bytes(self) -> int:
        """Return the bytes of data that a restore from this manifest reads."""
        return sum(part.size_bytes for log in self.logs for part in log.parts())

    def log(self, name: str) -> BackedUpLog | None:
        """Return the log of this name, or None."""
        return next((log for log in self.logs if log.name == name), None)

    def as_only_cut(self) -> Manifest:
        """Return the next manifest with the same cut, before which none can be restored."""
        number = self.number + 1
        return replace(self, number=number, oldest=OldestCut(number, self.ends))

    def to_bytes(self) -> bytes:
        """Encode the manifest."""
        line = json.dumps(_as_json(self), separators=(",", ":")).encode()
        return line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes, key: str) -> Manifest:
        """Decode a manifest.

        Args:    key: of the object, for messages.
        Raises:  BackupError.
        """
        line, _, rest = data.partition(b"\n")
        if rest != hashlib.sha256(line).hexdigest().encode() + b"\n":
            raise BackupError(
                f"{key} is damaged: its checksum does not match; restore an older cut by --at"
            )
        try:
            found = json.loads(line)
            known = type(found["format"]) is int and found["format"] <= FORMAT
            if not known:
                raise NewerFormatError(
                    f"{key} has format {found['format']}, written by Esker {found['release']}, and "
                    f"this one knows {FORMAT}: use that release or a newer one"
                )
            return _from_json(found, key)
        except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
            raise BackupError(f"{key} is no manifest of a backup: {error!r}") from None


# --- JSON -----------------------------------------------------------------------------------------


def _as_json(manifest: Manifest) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "release": manifest.release,
        "cluster": manifest.cluster_id,
        "number": manifest.number,
        "cut": manifest.cut,
        "broker": manifest.broker_id,
        "began_ms": manifest.began_ms,
        "oldest": {"number": manifest.oldest.number, "ends": dict(manifest.oldest.ends)},
        "logs": [_log_as_json(log) for log in manifest.logs],
    }


def _log_as_json(log: BackedUpLog) -> dict[str, Any]:
    checkpoint = log.checkpoint
    return {
        "topic": log.topic,
        "partition": log.partition,
        "topic_id": str(log.topic_id),
        "end": log.end,
        "epoch": log.epoch,
        "checkpoint": None
        if checkpoint is None
        else {
            "end": checkpoint.end,
            "epoch": checkpoint.epoch,
            "parts": [_part_as_json(part) for part in checkpoint.parts],
        },
        "ranges": [
            {"start": one.start, "end": one.end, **_part_as_json(one.data)} for one in log.ranges
        ],
    }


def _part_as_json(part: DataPart) -> dict[str, Any]:
    return {
        "object": part.object,
        "position": part.position,
        "bytes": part.size_bytes,
        "sha256": part.sha256,
    }


def _from_json(found: Any, key: str) -> Manifest:
    manifest = Manifest(
        number=_count(found["number"]),
        cluster_id=_text(found["cluster"]),
        broker_id=_count(found["broker"]),
        release=_text(found["release"]),
        cut=_count(found["cut"]),
        began_ms=_count(found["began_ms"]),
        oldest=OldestCut(
            _count(found["oldest"]["number"]),
            {_text(name): _count(end) for name, end in found["oldest"]["ends"].items()},
        ),
        logs=tuple(_log_from_json(log) for log in _items(found["logs"])),
    )
    for log in manifest.logs:
        fault = log.fault()
        if fault is not None:
            raise BackupError(f"{key} contradicts itself: {log.name}: {fault}")
    return manifest


def _log_from_json(found: Any) -> BackedUpLog:
    checkpoint = found["checkpoint"]
    return BackedUpLog(
        topic=_text(found["topic"]),
        partition=_count(found["partition"]),
        topic_id=UUID(_text(found["topic_id"])),
        end=_count(found["end"]),
        epoch=_count(found["epoch"]),
        checkpoint=None
        if checkpoint is None
        else BackedUpCheckpoint(
            _count(checkpoint["end"]),
            _count(checkpoint["epoch"]),
            tuple(_part_from_json(part) for part in _items(checkpoint["parts"])),
        ),
        ranges=tuple(
            BackedUpRange(_count(one["start"]), _count(one["end"]), _part_from_json(one))
            for one in _items(found["ranges"])
        ),
    )


def _part_from_json(found: Any) -> DataPart:
    return DataPart(
        _text(found["object"]),
        _count(found["position"]),
        _count(found["bytes"]),
        _text(found["sha256"]),
    )


def _count(found: Any) -> int:
    if type(found) is not int or not 0 <= found < 2**63:
        raise ValueError(f"{found!r:.80} is no count")
    return found


def _items(found: Any) -> list[Any]:
    if not isinstance(found, list):
        raise TypeError(f"{found!r:.80} is no list")
    return found


def _text(found: Any) -> str:
    if not isinstance(found, str):
        raise TypeError(f"{found!r:.80} is no text")
    return found
