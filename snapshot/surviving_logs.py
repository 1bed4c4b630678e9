"""Chooses the copy of a log that a restore continues from, among the copies that survived.

Directories of voters and of brokers hold copies of the same log, each up to another offset. The
newest copy by (last epoch, end offset) has every record that an older copy knew to be committed:
that is the rule by which voters elect a leader. So a copy that knew committed records which the
newest copy lacks proves a fork, and then no rule says which history is right.

Two logs with one epoch at one offset have the same records up to there (KIP-595), so epochs and
their first offsets suffice to compare logs. No record is read here.

Source: docs/design/restore.md#choosing-among-copies; docs/design/forks.md#what-is-a-fork.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
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

    @property
    def contradicts(self) -> bool:
        """Return whether this copy has committed records that the chosen copy lacks."""
        return self.common_end is not None and self.common_end < self.log.held

    @property
    def dropped(self) -> int:
        """Return the number of records that only this copy has."""
        return 0 if self.common_end is None else self.log.end - self.common_end


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChoice:
    """The copy of a log to restore, and what is known of the other copies."""

    chosen: SurvivingLog
    others: tuple[OtherCopy, ...]
    lost: int  # records known to be committed that no copy has

    @property
    def contradictions(self) -> tuple[OtherCopy, ...]:
        """Return the copies that prove a fork, so that an operator has to leave one side out."""
        return tuple(other for other in self.others if other.contradicts)


def choose_log(copies: Sequence[SurvivingLog]) -> LogChoice:
    """Choose the newest copy by (last epoch, end offset) and compare each other copy with it.

    The earlier of two equal copies is chosen.

    Raises:  NoCopyError without a copy.
    """
    if not copies:
        raise NoCopyError("no source has a copy of this log; name another directory by --from")
    chosen = max(copies, key=lambda copy: (copy.last_epoch, copy.end))
    committed = max(copy.committed for copy in copies)
    return LogChoice(
        chosen=chosen,
        others=tuple(
            OtherCopy(log=copy, common_end=common_end(copy, chosen))
            for copy in copies
            if copy is not chosen
        ),
        lost=max(0, committed - chosen.end),
    )


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
