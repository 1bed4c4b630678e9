"""The leader epochs of a diskless partition: the timelines of its cluster.

Any broker serves any partition, so the leader epoch does not rise with a leader. It rises with a
restore, after which offsets may hold other records than before. Clients compare epochs, ask
OffsetForLeaderEpoch for the end of the older one, and so notice that (KIP-320).

Source: docs/design/restore.md#leader-epochs-are-timelines.
"""

from __future__ import annotations

from typing import NamedTuple

from records.kafka_errors import ErrorCode


class LeaderEpochs(NamedTuple):
    """A partition's leader epochs with their first offsets, by rising epoch; the last is current.

    >>> epochs = LeaderEpochs(((0, 0), (1, 100)))
    >>> epochs.current, epochs.at(99), epochs.at(100)
    (1, 0, 1)
    """

    starts: tuple[tuple[int, int], ...] = ((0, 0),)

    @property
    def current(self) -> int:
        """Return the leader epoch of newly appended batches."""
        return self.starts[-1][0]

    def at(self, offset: int) -> int:
        """Return the leader epoch of the record at an offset."""
        for epoch, first_offset in reversed(self.starts):
            if first_offset <= offset:
                return epoch
        return self.starts[0][0]

    def end_of(self, epoch: int, high_watermark: int) -> tuple[int, int] | None:
        """Return the newest epoch not above `epoch`, and its exclusive end offset.

        None for an epoch above the current one. An epoch below all known ones ends where they
        begin.

        >>> epochs = LeaderEpochs(((0, 0), (2, 100)))
        >>> [epochs.end_of(epoch, 150) for epoch in (0, 1, 2, 3)]
        [(0, 100), (0, 100), (2, 150), None]
        """
        if epoch > self.current:
            return None
        end = high_watermark
        for known, first_offset in reversed(self.starts):
            if known <= epoch:
                return known, end
            end = first_offset
        return epoch, end

    def begin(self, epoch: int, first_offset: int) -> LeaderEpochs:
        """Return the leader epochs once a higher `epoch` has begun at `first_offset`.

        >>> LeaderEpochs(((0, 0), (1, 100))).begin(2, 90)
        LeaderEpochs(starts=((0, 0), (2, 90)))
        """
        kept = [
            start for start in self.starts if start[1] < first_offset or start == self.starts[0]
        ]
        return LeaderEpochs((*kept, (epoch, first_offset)))

    def refuse(self, requested: int) -> ErrorCode:
        """Return the error for a request's current leader epoch; NONE if it is right, or not told.

        Source: KIP-320.
        """
        if requested < 0 or requested == self.current:
            return ErrorCode.NONE
        if requested < self.current:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.UNKNOWN_LEADER_EPOCH
