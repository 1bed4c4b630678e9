"""A replicated log of one node, in memory: for tests of what stands on top, and for trying it out.

It keeps the contract of `raft.interfaces.ReplicatedLog` to the letter, and lets a test decide what
a quorum leaves to chance: when a leader is elected and deposed, when what was accepted is
committed, and how much of the rest is lost.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable
from typing import Final, NamedTuple

from raft.interfaces import (
    CommittedAsOf,
    Draft,
    EpochStarts,
    NotLeaderError,
    Snapshots,
    Ticket,
    VoterClocks,
    Watcher,
)
from records.batch_writer import build_control_batch, stamp
from records.compression import Buffer
from records.control import LeaderChangeMessage, Voter
from records.frame import encode_control_record
from records.types import Epoch, NodeId, Offset, OffsetAndEpoch

NODE_ID: Final = NodeId(1)
_NOT_LEADER: Final = 6
_INVALID_REQUEST: Final = 42
_LEADER_CHANGE: Final = 2


class _Stored(NamedTuple):
    base_offset: Offset
    end_offset: Offset
    epoch: Epoch
    data: bytes


class MemoryLog:
    """See the module. Nothing leads until `elect`; with `auto_commit` everything commits at once.

    >>> from raft.interfaces import draft_values
    >>> log = MemoryLog(); epoch = log.elect()
    >>> log.propose(SilentTicket(), epoch, draft_values([b"x"], timestamp_ms=0))
    >>> log.high_watermark  # the LeaderChange record, and ours
    2
    """

    def __init__(
        self,
        name: str = "memory-0",
        *,
        auto_commit: bool = True,
        snapshots: Snapshots | None = None,
    ) -> None:
        """An empty log.

        Args:  snapshots: where its checkpoints are, for whoever takes or installs any.
        """
        self.name = name
        self.auto_commit = auto_commit
        self.leading_epoch: Epoch | None = None
        self.start_offset = Offset(0)
        self.end_offset = Offset(0)
        self.high_watermark: Offset | None = None
        self.committed_as_of: CommittedAsOf | None = None  # whoever has a clock may say so
        self.voter_clocks = VoterClocks(1, ())
        self.in_doubt = False
        self.forks: list[tuple[OffsetAndEpoch, Epoch]] = []  # as `report_fork` was told
        self._epoch = Epoch(0)
        self._opening: Epoch | None = None  # elected; its first record is not committed yet
        self._snapshot_id: OffsetAndEpoch | None = None
        self._snapshots = snapshots
        self._stored: list[_Stored] = []
        self._epoch_starts: dict[Epoch, Offset] = {}  # also of epochs before the log's start
        self._watchers: list[Watcher] = []

    # -- a ReplicatedLog -----------------------------------------------------------------------

    @property
    def leader_id(self) -> NodeId | None:
        return NODE_ID if self.leading_epoch is not None else None

    def epoch_before(self, offset: Offset) -> Epoch | None:
        if self._snapshot_id is not None and offset == self._snapshot_id.offset:
            return self._snapshot_id.epoch
        return self._stored_epoch(offset) if offset <= self.end_offset else None

    def epochs_below(self, offset: Offset) -> EpochStarts:
        return tuple(pair for pair in sorted(self._epoch_starts.items()) if pair[1] < offset)

    def report_fork(self, applied: OffsetAndEpoch, log_epoch: Epoch) -> None:
        self.in_doubt = True
        self.forks.append((applied, log_epoch))

    @property
    def snapshots(self) -> Snapshots:
        assert self._snapshots is not None, f"{self.name} was given no place for checkpoints"
        return self._snapshots

    def snapshot_taken(self, snapshot_id: OffsetAndEpoch) -> None:
        assert snapshot_id.offset <= (self.high_watermark or 0), f"not committed: {snapshot_id}"
        epoch = self._stored_epoch(snapshot_id.offset)
        assert epoch in (None, snapshot_id.epoch), f"epoch {epoch} ends there: {snapshot_id}"
        ends = {self.start_offset, *(stored.end_offset for stored in self._stored)}
        assert snapshot_id.offset in ends, f"inside a batch: {snapshot_id}"
        if self._snapshot_id is None or self._snapshot_id < snapshot_id:
            self._snapshot_id = snapshot_id

    def watch(self, watcher: Watcher) -> None:
        self._watchers.append(watcher)
        if self._snapshot_id is not None:
            watcher.snapshot(self._snapshot_id)
        if self.high_watermark is not None:
            watcher.committed(self.high_watermark)
        if self.leading_epoch is not None:
            watcher.lead(self.leading_epoch)

    def propose(
        self,
        ticket: Ticket,
        epoch: Epoch,
        draft: Draft,
        *,
        expected_end_offset: Offset | None = None,
    ) -> None:
        if epoch != self.leading_epoch:
            ticket.refused(_NOT_LEADER)
            return
        in_order = expected_end_offset in (None, self.end_offset)
        if not in_order or not draft.counts or min(draft.counts) < 1:
            ticket.refused(_INVALID_REQUEST)
            return
        base_offset = self.end_offset
        for part, count in zip(draft.parts, draft.counts, strict=True):
            data = bytearray(part)
            stamp(data, base_offset=self.end_offset, leader_epoch=epoch)
            self._append(bytes(data), count, epoch)
        ticket.accepted(epoch, base_offset, self.end_offset)
        if self.auto_commit:
            self.commit()

    def read(self, from_offset: Offset, max_bytes: int) -> Buffer:
        end_offset = self.high_watermark or self.start_offset
        if not self.start_offset <= from_offset <= end_offset:
            raise ValueError(f"{from_offset} is outside {self.start_offset}..{end_offset}")
        first = bisect_right(self._stored, from_offset, key=lambda stored: stored.end_offset)
        parts: list[bytes] = []
        size_bytes = 0
        for stored in self._stored[first:]:
            if stored.end_offset > end_offset:
                break
            size_bytes += len(stored.data)
            if parts and size_bytes > max_bytes:
                break
            parts.append(stored.data)
        return b"".join(parts)

    def barrier(self) -> Awaitable[Offset]:
        return self._barrier()

    async def _barrier(self) -> Offset:
        if self.leading_epoch is None or self.high_watermark is None:
            raise NotLeaderError(_NOT_LEADER)
        return self.high_watermark

    def resign(self) -> None:
        self.depose()

    # -- what a test decides -------------------------------------------------------------------

    def elect(self) -> Epoch:
        """Lead the next epoch: append its LeaderChange record, and lead once that is committed."""
        assert self.leading_epoch is None, f"leads epoch {self.leading_epoch} already"
        self._epoch = self._opening = Epoch(self._epoch + 1)
        voters = (Voter(voter_id=NODE_ID),)
        message = LeaderChangeMessage(leader_id=NODE_ID, voters=voters, granting_voters=voters)
        _, value = encode_control_record(message)
        data = build_control_batch(
            [(_LEADER_CHANGE, value)],
            base_offset=self.end_offset,
            leader_epoch=self._epoch,
            timestamp=0,
        )
        self._append(bytes(data), 1, self._epoch)
        if self.auto_commit:
            self.commit()
        return self._epoch

    def commit(self, end_offset: Offset | None = None) -> None:
        """A majority holds everything below `end_offset`, None: all there is. Tell the watchers."""
        high_watermark = self.end_offset if end_offset is None else end_offset
        assert high_watermark <= self.end_offset, f"commit of {high_watermark}: {self.end_offset}"
        assert high_watermark >= (self.high_watermark or 0), f"backwards: {high_watermark}"
        if high_watermark == self.high_watermark:
            return
        self.high_watermark = high_watermark
        for watcher in self._watchers:
            watcher.committed(high_watermark)
        if self._opening is not None and self._stored_epoch(high_watermark) == self._opening:
            self.leading_epoch, self._opening = self._opening, None
            for watcher in self._watchers:
                watcher.lead(self.leading_epoch)

    def depose(self, *, lose_uncommitted: bool = True) -> None:
        """Lead no more. What was not committed is lost, or is kept by the next leader."""
        epoch, self.leading_epoch, self._opening = self.leading_epoch, None, None
        if lose_uncommitted:
            keep = self.high_watermark or self.start_offset
            while self._stored and self._stored[-1].end_offset > keep:
                self._stored.pop()
            self.end_offset = keep
            self._forget_epochs_from(keep)
        if epoch is not None:
            for watcher in self._watchers:
                watcher.step_down(epoch)

    def restart(self) -> None:
        """The process ended: nobody watches any more, and nobody leads."""
        self._watchers.clear()
        self.depose(lose_uncommitted=False)

    def install_snapshot(self, snapshot_id: OffsetAndEpoch) -> None:
        """As on a follower that lags too far behind: the log begins anew at the snapshot's end."""
        assert self.leading_epoch is None, "a leader installs no snapshot"
        assert snapshot_id.offset >= (self.high_watermark or 0), f"backwards: {snapshot_id}"
        self._stored.clear()
        self._forget_epochs_from(snapshot_id.offset)
        if self._snapshots is not None:
            self._epoch_starts.update(self._snapshots.epochs(snapshot_id))
        self.start_offset = self.end_offset = self.high_watermark = snapshot_id.offset
        self._epoch = max(self._epoch, snapshot_id.epoch)
        self._snapshot_id = snapshot_id
        for watcher in self._watchers:
            watcher.snapshot(snapshot_id)
            watcher.committed(snapshot_id.offset)

    def drop_prefix(self, snapshot_id: OffsetAndEpoch) -> None:
        """Let the log start at a snapshot of committed records."""
        assert snapshot_id.offset <= (self.high_watermark or 0), f"not committed: {snapshot_id}"
        self._stored = [batch for batch in self._stored if batch.end_offset > snapshot_id.offset]
        self.start_offset = snapshot_id.offset
        if self._snapshot_id is None or self._snapshot_id < snapshot_id:
            self._snapshot_id = snapshot_id

    def _forget_epochs_from(self, offset: Offset) -> None:
        starts = self._epoch_starts.items()
        self._epoch_starts = {epoch: start for epoch, start in starts if start < offset}

    def _append(self, data: bytes, count: int, epoch: Epoch) -> None:
        base_offset, self.end_offset = self.end_offset, Offset(self.end_offset + count)
        self._stored.append(_Stored(base_offset, self.end_offset, epoch, data))
        self._epoch_starts.setdefault(epoch, base_offset)

    def _stored_epoch(self, end_offset: Offset) -> Epoch | None:
        """The epoch of the last batch at or before `end_offset`."""
        held = [stored.epoch for stored in self._stored if stored.end_offset <= end_offset]
        return held[-1] if held else None


class SilentTicket:
    """A ticket of somebody who does not want to know; but a refusal is a mistake."""

    def accepted(self, epoch: Epoch, base_offset: Offset, end_offset: Offset) -> None:
        """As hoped."""

    def refused(self, error: int) -> None:
        raise AssertionError(f"refused: error code {int(error)}")
