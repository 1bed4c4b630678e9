"""The geometry of a replicated log: where it starts and ends, and which epoch wrote what.

The core never reads a record. To replicate, it needs only offsets and, for each epoch, where its
records begin: two logs that agree on the epoch of an offset agree on everything before it (Log
Matching, Raft paper figure 3), so a follower that says "I hold everything below 90, and the record
before it is of epoch 4" can be told with one bisection whether it may append, or where its log
parts from the leader's.

The trap: an epoch's end is not stored. It is where the next epoch begins.

Source: KIP-595, Fetch (diverging epoch); KIP-101 (why not by high watermark); KIP-630 (a log that
starts at a snapshot).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from raft.core.messages import NO_FLOOR, EpochEnd
from raft.interfaces import MAX_EPOCHS
from records.types import Epoch, Offset, OffsetAndEpoch


class EpochStart(NamedTuple):
    """An epoch, and its first offset in this log."""

    epoch: Epoch
    start_offset: Offset


def epoch_before(epochs: Sequence[EpochStart], offset: Offset) -> Epoch | None:
    """Return the epoch of the record before `offset`, or None if that record precedes `epochs`.

    >>> pairs = (EpochStart(Epoch(3), Offset(40)), EpochStart(Epoch(5), Offset(90)))
    >>> [epoch_before(pairs, Offset(n)) for n in (40, 41, 90, 91)]
    [None, 3, 3, 5]
    """
    index = bisect_right(epochs, offset - 1, key=attrgetter("start_offset"))
    return epochs[index - 1].epoch if index else None


class LogState:
    """One replica's log as the core knows it; all end offsets are exclusive.

    `generation` counts truncations and resets: a flush that began before one says nothing of what
    was written after it.

    >>> log = LogState(epochs=(EpochStart(Epoch(1), Offset(0)), EpochStart(Epoch(3), Offset(5))),
    ...                end_offset=Offset(9))
    >>> log.end_of_epoch(Epoch(2))
    EpochEnd(epoch=1, end_offset=5)
    """

    __slots__ = (
        "_earlier",
        "_epochs",
        "_is_to_be_reset",
        "end_offset",
        "flushed_end_offset",
        "found_floor",
        "generation",
        "high_watermark",
        "last_epoch",
        "snapshot_epochs",
        "snapshot_id",
        "start_epoch",
        "start_offset",
    )

    def __init__(
        self,
        *,
        start_offset: Offset = Offset(0),  # noqa: B008
        start_epoch: Epoch = Epoch(0),  # noqa: B008
        end_offset: Offset = Offset(0),  # noqa: B008
        epochs: tuple[EpochStart, ...] = (),
        snapshot_id: OffsetAndEpoch | None = None,
        floor: Offset = NO_FLOOR,
        snapshot_epochs: Iterable[tuple[Epoch, Offset]] = (),
    ) -> None:
        """Create the core's view of a recovered log, all of whose records are durable.

        Args:    start_offset, end_offset: of the log.
                 start_epoch: of the record before `start_offset` (from the snapshot that ends
                 there); 0 if the log starts at 0.
                 epochs: the epochs of the records in [start_offset, end_offset), in order.
                 snapshot_id: of the newest snapshot, None if there is none or only the bootstrap;
                 if the log does not hold it (see `holds`), `Start` begins the log anew there.
                 floor: everything below it was known to be committed, as found on the disk; 0 if
                 nothing is known. It may lie past the end.
                 snapshot_epochs: those that the newest snapshot names, as far as it knows them.
        Raises:  ValueError if these contradict each other, or the log starts late and no snapshot
                 holds what is missing.
        Source:  KIP-630, Validation of Snapshot and Log.
        """
        self.start_offset = start_offset
        self.start_epoch = start_epoch
        self.end_offset = end_offset
        self.flushed_end_offset = end_offset
        self.generation = 0
        self.snapshot_id = snapshot_id
        self._epochs: list[EpochStart] = list(epochs)
        self.last_epoch: Epoch = epochs[-1].epoch if epochs else start_epoch
        # A snapshot holds only committed records; the rest is unknown until a leader says.
        self.high_watermark: Offset | None = snapshot_id.offset if snapshot_id else None
        self.found_floor = floor
        self._earlier: list[EpochStart] = []  # epochs that began before the log's start
        self.snapshot_epochs = tuple(EpochStart(*pair) for pair in snapshot_epochs)
        self._earlier = [pair for pair in self.snapshot_epochs if pair.start_offset < start_offset]
        in_order = all(
            earlier.epoch < later.epoch and earlier.start_offset < later.start_offset
            for earlier, later in pairwise(epochs)
        )
        inside = not epochs or (
            start_offset <= epochs[0].start_offset and epochs[-1].start_offset < end_offset
        )
        nonempty_has_epochs = bool(epochs) or start_offset == end_offset
        if not (start_offset <= end_offset and in_order and inside and nonempty_has_epochs):
            raise ValueError(f"log geometry contradicts itself: {self}, epochs={epochs}")
        if start_offset > (snapshot_id.offset if snapshot_id is not None else 0):
            raise ValueError(f"no snapshot stands for what is before the log's start: {self}")
        # Then the high watermark, which is the snapshot's, says nothing of the log's own records.
        self._is_to_be_reset = snapshot_id is not None and not self.holds(snapshot_id)
        here = snapshot_id is not None and snapshot_id.offset == start_offset > 0
        if here and snapshot_id != (start_offset, start_epoch):
            raise ValueError(f"epoch {start_epoch} before the start contradicts {self}")

    def __repr__(self) -> str:
        return (
            f"LogState(start={self.start_offset}, end={self.end_offset}, "
            f"flushed={self.flushed_end_offset}, hw={self.high_watermark}, "
            f"last_epoch={self.last_epoch}, snapshot={self.snapshot_id})"
        )

    @property
    def epochs(self) -> tuple[EpochStart, ...]:
        """Return the epochs in the log, oldest first, as in the file `leader-epoch-checkpoint`."""
        return tuple(self._epochs)

    @property
    def floor(self) -> Offset:
        """Return the offset below which this node knows all records as committed and flushed.

        Never lower than before, restarts included. Source: docs/design/forks.md#the-floor.
        """
        known = self.high_watermark
        if known is None or self._is_to_be_reset:
            return self.found_floor
        return max(self.found_floor, min(known, self.flushed_end_offset))

    @property
    def held_floor(self) -> Offset:
        """Return the log's floor, or the log end offset if that offset is lower."""
        return min(self.floor, self.end_offset)

    def end_of_epoch(self, epoch: Epoch) -> EpochEnd:
        """Return the largest epoch in the log that is at most `epoch`, and that epoch's end offset.

        If all epochs are larger, the log holds nothing that old: its start, and the epoch before.
        """
        index = bisect_right(self._epochs, epoch, key=attrgetter("epoch"))
        end = self.end_offset if index == len(self._epochs) else self._epochs[index].start_offset
        if index == 0:
            return EpochEnd(self.start_epoch, self.start_offset)
        return EpochEnd(self._epochs[index - 1].epoch, end)

    def epoch_before(self, offset: Offset) -> Epoch:
        """Return the epoch of the record before `offset`, or 0 if `offset` is 0."""
        index = bisect_right(self._epochs, offset - 1, key=attrgetter("start_offset"))
        return self._epochs[index - 1].epoch if index else self.start_epoch

    def epochs_below(self, offset: Offset) -> tuple[EpochStart, ...]:
        """Return the epochs of the records below `offset`, including removed records.

        The newest `MAX_EPOCHS`, with their true first offsets, as far as they are known.
        """
        latest = self._earlier[-1].epoch if self._earlier else -1
        known = [*self._earlier, *(pair for pair in self._epochs if pair.epoch > latest)]
        return tuple(pair for pair in known if pair.start_offset < offset)[-MAX_EPOCHS:]

    def holds(self, snapshot_id: OffsetAndEpoch) -> bool:
        """Return whether the log contains the snapshot's end offset, with the same epoch before it.

        If not, the snapshot is the newer of the two, or the log is of another history from
        somewhere before that offset on: either way the log is to begin anew at the snapshot's end.
        """
        offset, epoch = snapshot_id
        return self.start_offset <= offset <= self.end_offset and self.epoch_before(offset) == epoch

    def judge_fetch(
        self, fetch_offset: Offset, last_fetched_epoch: Epoch
    ) -> EpochEnd | OffsetAndEpoch | None:
        """Return the diverging epoch or snapshot that answers a Fetch, or None to send records.

        Returns: None if it can; where the logs part, if they do; the snapshot to fetch first, if
        the log no longer reaches back that far, or the replica is empty (it names no epoch) and
        there is a snapshot. A replica at offset 0 that names an epoch wants the log itself.
        Source:  KIP-595, Fetch; KIP-630, Fetch; upstream's validateOffsetAndEpoch.
        """
        if self.start_offset > 0:
            if (
                fetch_offset < self.start_offset
                or (fetch_offset == self.start_offset and last_fetched_epoch != self.start_epoch)
                or last_fetched_epoch < self.start_epoch
            ):
                assert self.snapshot_id is not None, f"log start without snapshot: {self}"
                return self.snapshot_id
        elif fetch_offset == 0 and last_fetched_epoch == 0:
            return self.snapshot_id
        end = self.end_of_epoch(last_fetched_epoch)
        if end.epoch != last_fetched_epoch or end.end_offset < fetch_offset:
            return end
        return None

    def truncation_point(self, diverging: EpochEnd) -> Offset:
        """Return the offset at which to truncate a log that differs from the leader's log.

        If this log has that epoch, at the shorter of the two ends. If not, at the end of the
        largest epoch below it that it has: the next Fetch will compare that one.
        """
        ours = self.end_of_epoch(diverging.epoch)
        if ours.epoch == diverging.epoch:
            return min(ours.end_offset, diverging.end_offset)
        return ours.end_offset

    def append(self, base_offset: Offset, end_offset: Offset, epoch: Epoch) -> None:
        """Record that batches of `epoch` were appended, which moves the end to `end_offset`."""
        assert base_offset == self.end_offset, f"gap: append at {base_offset} to {self}"
        assert end_offset > base_offset, f"append of nothing at {base_offset}"
        assert epoch >= self.last_epoch, f"epoch {epoch} appended to {self}"
        if epoch > self.last_epoch or not self._epochs:
            self._epochs.append(EpochStart(epoch, base_offset))
            self.last_epoch = epoch
        self.end_offset = end_offset

    def truncate(self, end_offset: Offset) -> None:
        """Move the log end back to `end_offset`; the driver truncates the stored log."""
        assert end_offset <= self.end_offset, f"truncation to {end_offset} grows {self}"
        assert end_offset >= self.start_offset, f"truncation to {end_offset} before start of {self}"
        assert self.high_watermark is None or end_offset >= self.high_watermark, (
            f"truncation to {end_offset} would drop committed records of {self}"
        )
        assert end_offset >= self.held_floor, (
            f"12: truncation to {end_offset} below the floor {self.floor} of {self}"
        )
        while self._epochs and self._epochs[-1].start_offset >= end_offset:
            self._epochs.pop()
        self.last_epoch = self._epochs[-1].epoch if self._epochs else self.start_epoch
        self.end_offset = end_offset
        self.flushed_end_offset = min(self.flushed_end_offset, end_offset)
        self.generation += 1

    def move_start(self, start_offset: Offset) -> None:
        """Raise the log start after a snapshot replaced the records below `start_offset`."""
        assert self.start_offset <= start_offset, f"log start to {start_offset}, backwards: {self}"
        assert self.snapshot_id is not None, f"log start to {start_offset} without snapshot: {self}"
        assert start_offset <= self.snapshot_id.offset, f"log start past the snapshot: {self}"
        self.start_epoch = self.epoch_before(start_offset)
        self.start_offset = start_offset
        # Dropped records are durable in the snapshot, even where no flush was reported.
        self.flushed_end_offset = max(self.flushed_end_offset, start_offset)
        # The epoch of the new start remains and begins there; older ones go.
        self._earlier = list(self.epochs_below(start_offset))
        keep = bisect_right(self._epochs, start_offset, key=attrgetter("start_offset")) - 1
        if keep >= 0:
            running = self._epochs[keep]
            del self._epochs[:keep]
            self._epochs[0] = EpochStart(running.epoch, start_offset)
        if start_offset == self.end_offset:
            self._epochs.clear()

    def note_snapshot(self, snapshot_id: OffsetAndEpoch) -> None:
        """Register a snapshot of committed records, unless the log has a newer snapshot."""
        assert snapshot_id.offset <= (self.high_watermark or 0), (
            f"snapshot {snapshot_id} of what is not committed: {self}"
        )
        assert snapshot_id.offset < self.start_offset or self.holds(snapshot_id), (
            f"snapshot {snapshot_id} of another history: {self}"
        )
        if self.snapshot_id is None or self.snapshot_id < snapshot_id:
            self.snapshot_id = snapshot_id

    def reset_to(
        self, snapshot_id: OffsetAndEpoch, epochs: Iterable[tuple[Epoch, Offset]] = ()
    ) -> None:
        """Empty the log and let it start again at the snapshot's end offset."""
        self.start_offset = self.end_offset = self.flushed_end_offset = snapshot_id.offset
        self.start_epoch = self.last_epoch = snapshot_id.epoch
        self._epochs.clear()
        self._is_to_be_reset = False
        self._earlier = [EpochStart(*pair) for pair in epochs]
        self.snapshot_id = snapshot_id
        self.high_watermark = snapshot_id.offset  # a snapshot holds only what was committed
        self.generation += 1
