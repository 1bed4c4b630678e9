"""Decides which checkpoint a log may start at. Pure.

A leader's log may start at any of its checkpoints. A later start saves disk, but more replicas
then have to fetch a whole checkpoint for the sake of a few records. So the start waits for
*holders*:

- a live **replica** (it fetched within `live_ms`, from the log or a checkpoint) holds the records
  that it has not fetched yet;
- a live **reader** (the archive) holds the records that it does not have durably yet, up to a
  bound of its own in bytes.

A replica's hold ends when a checkpoint is older than `max_lag_ms`, or when log and checkpoints
together take more than `max_retention_bytes`: one slow observer must not fill every disk. Neither
ends a reader's hold, and a reader's bound ends no replica's hold: an archive loses for good what it
never read, while a replica finds all it needs in a checkpoint.

The trap: a new leader knows no replica's position yet, which looks like having no slow replica. So
it moves nothing before every voter has fetched from it, or `live_ms` have passed.

A follower cuts to its own newest checkpoint at or below its leader's log start: KIP-630's minimum
of the two, brought down to where one of its checkpoints ends, because only there it knows the epoch
before its first record.

Source: KIP-630, When to Increase the LogStartOffset; KIP-876 for the retention by size;
docs/design/snapshots.md#where-the-log-starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from records.types import Offset, OffsetAndEpoch


class Kind(Enum):
    """The kinds of holders."""

    VOTER = "voter"
    OBSERVER = "observer"
    READER = "reader"  # has a bound of its own


class Holder(NamedTuple):
    """A replica or reader that still needs the records from `offset` on."""

    name: str
    kind: Kind
    offset: Offset | None  # holds everything below; None: nothing that is known
    last_seen_ms: int | None
    max_lag_bytes: int | None = None  # a reader's; None: no bound


class Candidate(NamedTuple):
    """A checkpoint that the log may start at."""

    snapshot_id: OffsetAndEpoch
    size_bytes: int
    log_bytes_after: int  # of the log, from the checkpoint's end on
    age_ms: int  # since it was published here


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStartSettings:
    """The operator's settings, in ms and bytes.

    Raises:  ValueError naming the field, if one is impossible.
    """

    live_ms: int = 300_000
    max_lag_ms: int = 7 * 24 * 3_600_000  # metadata.start.offset.lag.time.max.ms
    max_retention_bytes: int | None = 100 * 1024 * 1024  # metadata.max.retention.bytes; None: any
    archive_max_lag_bytes: int = 1024 * 1024 * 1024  # esker.archive.max.lag.bytes; 0: no hold

    def __post_init__(self) -> None:
        if self.live_ms < 0:
            raise ValueError(f"live_ms={self.live_ms} is negative")
        if self.max_lag_ms < 0:
            raise ValueError(f"max_lag_ms={self.max_lag_ms} is negative")
        if self.max_retention_bytes is not None and self.max_retention_bytes < 0:
            raise ValueError(f"max_retention_bytes={self.max_retention_bytes} is negative")
        if self.archive_max_lag_bytes < 0:
            raise ValueError(f"archive_max_lag_bytes={self.archive_max_lag_bytes} is negative")


def leader_log_start(
    candidates: Sequence[Candidate],
    holders: Sequence[Holder],
    *,
    log_start_offset: Offset,
    log_bytes: int,
    now_ms: int,
    leading_since_ms: int,
    settings: LogStartSettings,
) -> OffsetAndEpoch | None:
    """Return the checkpoint at whose end a leader's log should start, or None to keep its start.

    Args:    candidates: the checkpoints, oldest first. holders: every voter but the leader, every
             observer it has heard of, and readers. log_bytes: from the start on, now.
    """
    beyond = [one for one in candidates if one.snapshot_id.offset > log_start_offset]
    readers = [one for one in holders if one.kind is Kind.READER]
    readers = [one for one in readers if _lives(one, now_ms, settings)]
    free = [one for one in beyond if not _read_on(one, readers)]
    chosen: Candidate | None = None
    for candidate in free:
        if candidate.age_ms >= settings.max_lag_ms:
            chosen = candidate
    replicated = _replicated_end(holders, now_ms, leading_since_ms, settings)
    for candidate in free:
        if replicated is not None and candidate.snapshot_id.offset <= replicated:
            chosen = _later(chosen, candidate)
    forced = _forced_by_size(candidates, free, log_bytes, settings.max_retention_bytes)
    chosen = _later(chosen, forced)
    return None if chosen is None else chosen.snapshot_id


def follower_log_start(
    own_ids: Sequence[OffsetAndEpoch], leader_log_start: Offset, *, log_start_offset: Offset
) -> OffsetAndEpoch | None:
    """Return the checkpoint at whose end a follower's log should start, or None to keep its start.

    >>> from records.types import Epoch
    >>> ids = [OffsetAndEpoch(Offset(n), Epoch(1)) for n in (10, 20, 30)]
    >>> follower_log_start(ids, Offset(25), log_start_offset=Offset(0)).offset
    20
    """
    reached = [one for one in own_ids if log_start_offset < one.offset <= leader_log_start]
    return max(reached, default=None)


def _later(one: Candidate | None, other: Candidate | None) -> Candidate | None:
    return max(
        (candidate for candidate in (one, other) if candidate is not None),
        key=lambda candidate: candidate.snapshot_id,
        default=None,
    )


def _lives(holder: Holder, now_ms: int, settings: LogStartSettings) -> bool:
    """Return whether the replica has fetched recently enough to count as alive."""
    seen_ms = holder.last_seen_ms
    return seen_ms is not None and now_ms - seen_ms <= settings.live_ms


def _read_on(candidate: Candidate, readers: Sequence[Holder]) -> bool:
    """Return whether an archive within its lag limit needs records before this checkpoint's end.

    What starting here would take from it is at least what lies after here, so its lag is more than
    `log_bytes_after`; only when that alone exceeds its bound is the bound surely passed.
    """
    for holder in readers:
        behind = holder.offset is None or holder.offset < candidate.snapshot_id.offset
        within = holder.max_lag_bytes is None or candidate.log_bytes_after <= holder.max_lag_bytes
        if behind and within:
            return True
    return False


def _replicated_end(
    holders: Sequence[Holder], now_ms: int, leading_since_ms: int, settings: LogStartSettings
) -> int | None:
    """Return the end offset that all live replicas have reached, or None if it is unknown."""
    replicas = [holder for holder in holders if holder.kind is not Kind.READER]
    unheard = [one for one in replicas if one.kind is Kind.VOTER and one.last_seen_ms is None]
    if unheard and now_ms - leading_since_ms < settings.live_ms:
        return None
    live = [
        one.offset or 0  # it lives and holds nothing: it is fetching a checkpoint
        for one in replicas
        if _lives(one, now_ms, settings)
    ]
    return min(live, default=(1 << 63) - 1)


def _forced_by_size(
    candidates: Sequence[Candidate],
    free: Sequence[Candidate],
    log_bytes: int,
    max_retention_bytes: int | None,
) -> Candidate | None:
    """Return the checkpoint at which the log must start to keep its size limit, or None."""
    if max_retention_bytes is None:
        return None
    checkpoint_bytes = sum(candidate.size_bytes for candidate in candidates)
    if log_bytes + checkpoint_bytes <= max_retention_bytes:
        return None
    for candidate in free:
        staying = sum(
            one.size_bytes for one in candidates if one.snapshot_id >= candidate.snapshot_id
        )
        if staying + candidate.log_bytes_after <= max_retention_bytes:
            return candidate
    return free[-1] if free else None
