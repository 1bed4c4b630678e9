"""Chooses the copy of a log that a restore continues from, among the copies that survived.

Directories of voters and of brokers hold copies of the same log, each up to another offset. All
records that a copy held and knew to be committed were committed. So where two copies differ below
what one of them knew, the other's records from there on were never committed, and it is left out.
If both knew, the log has forked, and no rule says which history is right.

Of the rest, the newest copy by (last epoch, end offset) is chosen. The trap: with a majority of the
voters gone, no copy need know what was committed last. What only another copy has, and no copy
disproves, may have been acknowledged.

Two logs with one epoch at one offset have the same records up to there (KIP-595), so epochs and
their first offsets suffice to compare logs. No record is read here.

Source: docs/design/restore.md#choosing-among-copies; docs/design/forks.md#what-is-a-fork.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from raft.segments.epochs import EpochStart
from records.types import Offset


class NoCopyError(Exception):
    """No copy of the log can be restored; the message names the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivingLog:
    """A copy of one log in one directory, described by its epochs and offsets."""

    directory: Path
    epochs: tuple[EpochStart, ...]  # rising; may begin below the log, from a checkpoint's header
    end: Offset  # exclusive: all below are sound on this disk
    committed: Offset  # exclusive: the directory knew all below to be committed; may exceed `end`
    damaged: bool = False  # records behind `end` were cut off, perhaps of newer epochs

    @property
    def last_epoch(self) -> int:
        """Return the epoch of the newest record, or -1 for an empty log."""
        return self.epochs[-1].epoch if self.epochs else -1

    @property
    def held(self) -> Offset:
        """Return the end of the committed records that this copy still has."""
        return min(self.committed, self.end)

    def epoch_before(self, offset: int) -> EpochStart | None:
        """Return the epoch of the record before `offset`, or None if the copy does not say."""
        index = bisect_right(self.epochs, offset - 1, key=lambda entry: entry.start_offset)
        return self.epochs[index - 1] if index else None


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherCopy:
    """A copy that is not restored, compared with the chosen copy."""

    log: SurvivingLog
    common_end: Offset | None  # exclusive; None: epochs do not reach down to a common record
    uncommitted_from: Offset  # the copy's records from here on were certainly never committed

    @property
    def dropped(self) -> int:
        """Return the number of records that the chosen copy lacks and this one has."""
        return 0 if self.common_end is None else self.log.end - self.common_end

    @property
    def doubtful(self) -> int:
        """Return the number of dropped records that may have been acknowledged."""
        if self.common_end is None:
            return 0
        return max(0, self.uncommitted_from - self.common_end)

    @property
    def is_undecided(self) -> bool:
        """Return whether this copy, before it was damaged, may have been the newer one."""
        return self.log.damaged and self.doubtful > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChoice:
    """The copy of a log to restore, and what is known of the other copies."""

    chosen: SurvivingLog
    others: tuple[OtherCopy, ...]
    forks: tuple[tuple[SurvivingLog, SurvivingLog], ...]  # an operator has to leave one side out
    lost: int  # log records known to be committed that the chosen copy lacks at its end


def choose_log(copies: Sequence[SurvivingLog]) -> LogChoice:
    """Choose the newest copy that no other copy disproves, and compare each other copy with it.

    The earlier of two equal copies is chosen. If all copies are disproved, `forks` is not empty.

    Raises:  NoCopyError without a copy.
    """
    if not copies:
        raise NoCopyError("no source has a copy of this log; name another directory by --from")
    sound_ends = [_uncommitted_from(copy, copies) for copy in copies]
    proven = [
        copy for copy, sound_end in zip(copies, sound_ends, strict=True) if sound_end == copy.end
    ]
    chosen = max(proven or copies, key=lambda copy: (copy.last_epoch, copy.end))
    committed = max(copy.committed for copy in copies)
    return LogChoice(
        chosen=chosen,
        others=tuple(
            OtherCopy(log=copy, common_end=common_end(copy, chosen), uncommitted_from=sound_end)
            for copy, sound_end in zip(copies, sound_ends, strict=True)
            if copy is not chosen
        ),
        forks=tuple(
            (one, other)
            for one, other in combinations(copies, 2)
            if _differ_below(one, other, min(one.held, other.held)) is not None
        ),
        lost=max(0, committed - chosen.end),
    )


def _uncommitted_from(copy: SurvivingLog, copies: Sequence[SurvivingLog]) -> Offset:
    """Return the first offset at which another copy's committed records differ, or the end."""
    differences = (_differ_below(copy, other, min(other.held, copy.end)) for other in copies)
    return min((at for at in differences if at is not None), default=copy.end)


def _differ_below(one: SurvivingLog, other: SurvivingLog, limit: int) -> Offset | None:
    """Return the first offset at which two copies differ, or None if it is not below `limit`."""
    end = common_end(one, other)
    return end if end is not None and end < limit else None


def common_end(one: SurvivingLog, other: SurvivingLog) -> Offset | None:
    """Return the exclusive end of the records that two copies share.

    None if one copy does not know the epochs so far down.
    """
    end = min(one.end, other.end)
    while end > 0:
        mine, theirs = one.epoch_before(end), other.epoch_before(end)
        if mine is None or theirs is None:
            return None
        if mine.epoch == theirs.epoch:
            return end
        # An epoch has one leader: the record before `end` is not shared, and neither is any
        # record of the newer epoch, which the other copy skipped.
        end = max(mine, theirs, key=lambda entry: entry.epoch).start_offset
    return Offset(0)
