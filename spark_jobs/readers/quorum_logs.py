"""The logs of a running quorum, read as an observer reads them: Fetch and FetchSnapshot.

    logs = QuorumLogs([("127.0.0.1", 9093)])
    log = logs.log("__diskless-metadata-0")
    for span in log.spans(log.end_offset()):
        for position, value in span.values(): ...

No directory, no agent: any controller's address is enough. A span is a range of offsets and the
addresses; the task that reads it finds the leader by itself, and continues with the next one when
that fails.

The trap is that a leader answers a Fetch with records that no majority has yet: replicas need
them. So every answer is cut at the high watermark that came with it.

Source: KIP-595, Fetch (observers); KIP-630; docs/design/pipeline.md#one-input.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from raft.net.security import outgoing_security
from records.batch import Batch, iter_batches
from records.compression import Buffer
from records.errors import CorruptBatchError
from records.types import Epoch, Offset, OffsetAndEpoch
from spark_jobs.readers.checkpoint_copy import copies_of, copy_checkpoint
from spark_jobs.readers.log_files import SPLIT_BYTES, FileSpan, LostRangeError, batch_values
from spark_jobs.readers.log_position import LogPosition
from spark_jobs.readers.logs import CLUSTER_METADATA, LogsError, checked_cluster_id, names_in_order
from spark_jobs.readers.quorum_link import (
    Address,
    Described,
    Fetched,
    GoneError,
    Quorum,
    QuorumLink,
)

FIRST_REPLICA_ID: Final = 1_000_000_000
"""Readers call themselves by ids from here on, at random: no node of a cluster is numbered so."""

_REPLICA_IDS: Final = 500_000_000
_PAUSE_S: Final = 0.05
_MAX_SPLITS: Final = 10_000


@dataclass(frozen=True, slots=True)
class QuorumSpan:
    """Offsets [start_offset, end_offset) that one task reads, or a whole checkpoint."""

    quorum: Quorum
    log: str
    is_checkpoint: bool
    start_offset: int
    end_offset: int
    epoch: int | None = None  # of the record before the start; of a checkpoint its own

    def within(self, lowest: int, highest: int) -> QuorumSpan | None:
        """Narrow the span to these offsets, both inclusive, or return None if no offset is left."""
        if self.is_checkpoint:
            return self if lowest <= self.end_offset - 1 <= highest else None
        start, end = max(self.start_offset, lowest), min(self.end_offset, highest + 1)
        if start >= end:
            return None
        epoch = self.epoch if start == self.start_offset else None
        return replace(self, start_offset=start, end_offset=end, epoch=epoch)

    def values(self) -> Iterator[tuple[LogPosition, Buffer]]:
        """Yield the position and framed value of each metadata record, fetched from the quorum.

        Raises:  LostRangeError; LogsError; RecordError; OSError.
        """
        if self.is_checkpoint:
            yield from self._copy().values()
            return
        for batch in self.batches():
            yield from batch_values(batch, self.start_offset, self.end_offset)

    def batches(self) -> Iterator[Batch]:
        """Yield the whole batches that hold any of the span's offsets, control batches included.

        Raises:  as `values`.
        """
        if self.is_checkpoint:
            yield from self._copy().batches()
            return
        with QuorumLink(self.quorum, self.log) as link:
            yield from _committed_batches(link, self)

    def _copy(self) -> FileSpan:
        """Download the checkpoint if this machine has no copy, and return the copy as a span."""
        assert self.epoch is not None, f"a checkpoint has an epoch: {self}"
        snapshot_id = OffsetAndEpoch(Offset(self.end_offset), Epoch(self.epoch))
        directory = copies_of(self.quorum.cluster_id, self.log)
        with QuorumLink(self.quorum, self.log) as link:
            try:
                path = copy_checkpoint(link, directory, snapshot_id)
            except GoneError as error:
                raise LostRangeError(self.log, self.start_offset, None, str(error)) from None
        return FileSpan(path, True, 0, self.end_offset)


class QuorumLog:
    """A log of a running quorum."""

    def __init__(self, quorum: Quorum, name: str) -> None:
        self.name = name
        self._quorum = quorum

    def describe(self) -> Described:
        """Return the leader's description of the log: its offsets, size and checkpoints.

        Raises:  LogsError.
        """
        with QuorumLink(self._quorum, self.name) as link:
            return link.describe()

    def end_offset(self) -> int:
        """Return the leader's high watermark of the log.

        Raises:  LogsError.
        """
        return self.describe().high_watermark

    def contains(self, offset: int, epoch: int) -> bool:
        """Return whether the leader's record before `offset` has this epoch.

        Then all that is before it is the same, too (invariant 3, docs/design/invariants.md). Raises
        LogsError.
        """
        with QuorumLink(self._quorum, self.name) as link:
            found = link.fetch(offset, epoch, max_bytes=1)
        return found.diverging is None and found.snapshot_id is None

    def checkpoints(self) -> Sequence[QuorumSpan]:
        """List the leader's checkpoints, oldest first.

        Raises:  LogsError.
        """
        found = self.describe().checkpoints
        return [
            QuorumSpan(self._quorum, self.name, True, 0, checkpoint.offset, checkpoint.epoch)
            for checkpoint in found
        ]

    def spans(
        self,
        end_offset: int,
        *,
        start_offset: int | None = None,
        split_bytes: int = SPLIT_BYTES,
    ) -> Sequence[QuorumSpan]:
        """Split the offsets below `end_offset` into spans at the base offsets of batches.

        Raises:  LostRangeError; LogsError.
        """
        with QuorumLink(self._quorum, self.name) as link:
            found = link.describe()
            if end_offset > found.high_watermark:
                raise LostRangeError(
                    self.name, found.high_watermark, found.log_start_offset,
                    f"only offsets below {found.high_watermark} are committed",
                )  # fmt: skip
            spans: list[QuorumSpan] = []
            start, epoch = start_offset or 0, _epoch_before(found, start_offset or 0)
            if start_offset is None and found.log_start_offset > 0:
                first = self._checkpoint_before(found, end_offset)
                spans.append(QuorumSpan(self._quorum, self.name, True, 0, *first))
                start, epoch = first
            if start < min(end_offset, found.log_start_offset):
                raise LostRangeError(
                    self.name, start, found.log_start_offset, "the log's head was cut off"
                )
            if start < end_offset:
                for first_offset, stop in self._cuts(link, found, start, end_offset, split_bytes):
                    known = epoch if first_offset == start else None
                    spans.append(
                        QuorumSpan(self._quorum, self.name, False, first_offset, stop, known)
                    )
        return spans

    def _checkpoint_before(self, found: Described, end_offset: int) -> OffsetAndEpoch:
        """Return the oldest checkpoint from which the log continues to `end_offset` without a gap.

        The oldest replaced the fewest changes.
        """
        for checkpoint in found.checkpoints:
            if found.log_start_offset <= checkpoint.offset <= end_offset:
                return checkpoint
        raise LostRangeError(
            self.name, 0, found.log_start_offset, "there is no checkpoint before it"
        )

    def _cuts(
        self, link: QuorumLink, found: Described, start: int, end: int, split_bytes: int
    ) -> Iterator[tuple[int, int]]:
        """Split the offsets from `start` to `end` into spans of about `split_bytes` bytes.

        With fixed multiples a growing log keeps its earlier spans.
        """
        step = _step(found, split_bytes)
        first = start
        for wanted in range((start // step + 1) * step, end, step):
            answer = link.fetch(wanted, max_bytes=1)
            batch = next(iter_batches(answer.records, allow_partial_tail=True), None)
            cut = wanted if batch is None else batch.header.base_offset
            if first < cut < end:
                yield first, cut
                first = cut
        yield first, end


class QuorumLogs:
    """The logs of a running quorum."""

    def __init__(
        self,
        addresses: Sequence[Address],
        *,
        timeout_ms: int = 30_000,
        security: Mapping[str, str] | None = None,
    ) -> None:
        """Connect to a quorum, and read its cluster id and the names of its logs.

        Args:    addresses: controllers to begin with; any of them will do.
                 timeout_ms: how long an answer is waited for, elections included.
                 security: client properties of TLS and SASL; None: those of this process. They
                     go with the logs to the processes that read them.
        Raises:  LogsError if none answers, or what answers is no quorum.
        """
        if security is None:
            own = outgoing_security()
            security = {} if own is None else own.properties
        shipped = tuple(security.items())
        quorum = Quorum(tuple(addresses), "", _replica_id(), timeout_ms, shipped)
        with QuorumLink(quorum, CLUSTER_METADATA) as link:
            self.cluster_id = checked_cluster_id(link.cluster_id(), "the quorum")
            self._all = link.names()
            self._names = names_in_order(self._all)
        self.quorum = replace(quorum, cluster_id=self.cluster_id)

    def names(self) -> list[str]:
        """List the names of the quorum's logs, as of the creation of this object."""
        return list(self._names)

    def log(self, name: str) -> QuorumLog:
        """Return a log of the quorum by its name; also one that `names` leaves out.

        Raises:  LogsError if the cluster has no log of that name.
        """
        if name not in (*self._names, *self._all):
            raise LogsError(f"the cluster has no log {name}; it has: {', '.join(self._names)}")
        return QuorumLog(self.quorum, name)


@cache
def _replica_id() -> int:
    """Return the replica id that all fetches of this process share.

    So a stream that polls every second is one observer.
    """
    return FIRST_REPLICA_ID + secrets.randbelow(_REPLICA_IDS)


def _step(found: Described, split_bytes: int) -> int:
    """Estimate the number of offsets in `split_bytes` bytes, rounded down to a power of two.

    The power of two stays stable while a log grows.

    How many bytes are where, only the leader's disk knows; so all are taken for equally large.
    """
    held = max(1, found.log_end_offset - found.log_start_offset)
    offsets = max(split_bytes * held // max(1, found.log_bytes), held // _MAX_SPLITS, 1)
    return 1 << (int(offsets).bit_length() - 1)


def _epoch_before(found: Described, offset: int) -> int | None:
    """Return the epoch of the checkpoint that ends at `offset`, if the log begins there."""
    if offset and offset == found.log_start_offset:
        return next(
            (checkpoint.epoch for checkpoint in found.checkpoints if checkpoint.offset == offset),
            None,
        )
    return None


def _committed_batches(link: QuorumLink, span: QuorumSpan) -> Iterator[Batch]:
    """Yield a span's committed batches, and prefetch the following batches."""
    offset = span.start_offset
    pending = link.begin_fetch(offset, span.epoch)
    nothing_since: float | None = None
    while offset < span.end_offset:
        answer = pending.result()
        if answer.snapshot_id is not None and offset == 0 and not answer.log_start_offset:
            # a leader of another make: there is a quicker way than the log; but it begins here,
            # with its first LeaderChange
            pending = link.begin_fetch(1)
            offset = 1
            continue
        _check_held(span, offset, answer)
        end = min(span.end_offset, answer.high_watermark)
        batches = _in_order(answer.records, offset, end)
        if not batches:  # a new leader: it has them, and does not know yet how far
            nothing_since = nothing_since or time.monotonic()
            if time.monotonic() > nothing_since + span.quorum.timeout_ms / 1_000:
                raise LostRangeError(
                    span.log, offset, None, "its leader has not committed more yet"
                )
            time.sleep(_PAUSE_S)
            pending = link.begin_fetch(offset)
            continue
        nothing_since = None
        offset = batches[-1].header.end_offset
        if offset < span.end_offset:
            pending = link.begin_fetch(offset, batches[-1].header.leader_epoch)
        yield from batches


def _check_held(span: QuorumSpan, offset: int, answer: Fetched) -> None:
    """Raise LostRangeError if the leader's log does not hold the record before `offset`."""
    if answer.snapshot_id is not None:
        why = "the log's head was cut off"
        raise LostRangeError(span.log, offset, answer.log_start_offset, why)
    if answer.diverging is not None:
        epoch, end = answer.diverging
        why = f"its leader has another history: epoch {epoch} ends at {end}"
        raise LostRangeError(span.log, offset, answer.log_start_offset, why)


def _in_order(records: Buffer, offset: int, end: int) -> list[Batch]:
    """Return the whole valid batches from `offset` on that begin before `end`."""
    found: list[Batch] = []
    for batch in iter_batches(records, allow_partial_tail=True):
        header = batch.header
        if not header.base_offset <= offset < header.end_offset:
            raise CorruptBatchError(
                position=batch.position, reason=f"expected offset {offset}",
                offset=header.base_offset,
            )  # fmt: skip
        if header.base_offset >= end:
            break
        found.append(batch)
        offset = header.end_offset
    return found
