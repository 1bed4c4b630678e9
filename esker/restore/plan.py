"""Chooses the copy of each log that a restore goes on with, and refuses what cannot be decided.

`snapshot.surviving_logs` compares the copies of one log. Here the choices of all logs are put
together: which records are recovered, which are certainly lost, which may have been acknowledged
and are left out.

The trap: a chosen copy may know of fewer committed records than another copy that agrees with it.
A log is known to be committed as far as any copy knew, if that copy has the same records.

Source: docs/design/restore.md#choosing-among-copies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from esker.restore.errors import RestoreError
from esker.restore.sources import Sources
from raft.driver.config import METADATA_GROUP
from raft.wire.responses import Group
from records.types import Offset
from snapshot.surviving_files import CopyOnDisk
from snapshot.surviving_logs import LogChoice, choose_log


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenLog:
    """The copy of one log that is restored."""

    group: Group
    copy: CopyOnDisk
    choice: LogChoice

    @property
    def known_committed(self) -> Offset:
        """Return the exclusive end of the records that some source knew to be committed."""
        ends = [self.choice.chosen.held]
        for other in self.choice.others:
            if other.common_end is not None:
                ends.append(min(other.log.committed, other.common_end))
        return max(ends)

    @property
    def doubtful(self) -> int:
        """Return the largest number of records of another copy that may have been acknowledged."""
        return max((other.doubtful for other in self.choice.others), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The chosen copy of every log."""

    cluster_id: str  # of the lost cluster
    logs: Mapping[Group, ChosenLog]  # the cluster log first
    notes: tuple[str, ...]  # damage, and copies that cannot be used
    highest_epoch: int  # leader epoch in any source


def choose(sources: Sources) -> Choices:
    """Choose a copy of each log.

    Raises:  RestoreError if a log has forked, or a damaged copy may have been the newer one, or the
             cluster log is in no source.
    """
    if not sources.copies(METADATA_GROUP):
        reasons = [text for one in sources.directories for text in one.refused]
        raise RestoreError(
            f"no source has a copy of {METADATA_GROUP.name} that can be used"
            + "".join(f"; {text}" for text in reasons[:3])
        )
    logs = {}
    notes = [text for one in sources.directories for text in one.refused]
    for group in sources.groups:
        copies = sources.copies(group)
        notes += [text for copy in copies for text in copy.damage]
        choice = choose_log([copy.log for copy in copies])
        _refuse_undecided(group, choice)
        copy = next(one for one in copies if one.log is choice.chosen)
        logs[group] = ChosenLog(group=group, copy=copy, choice=choice)
    return Choices(
        cluster_id=sources.cluster_id,
        logs=logs,
        notes=tuple(notes),
        highest_epoch=max(one.highest_epoch for one in sources.directories),
    )


def _refuse_undecided(group: Group, choice: LogChoice) -> None:
    """Raise RestoreError if the operator has to leave a source out first."""
    for one, other in choice.forks:
        raise RestoreError(
            f"{group.name} has forked: {one.directory} and {other.directory} differ below offset "
            f"{min(one.held, other.held)}, which both knew to be committed; leave one of the two "
            "sources out"
        )
    undecided: Sequence[str] = [
        f"{other.log.directory} (ends at {other.log.end})"
        for other in choice.others
        if other.is_undecided
    ]
    if undecided:
        raise RestoreError(
            f"{group.name}: {undecided[0]} is damaged, and may have been newer than "
            f"{choice.chosen.directory} (ends at {choice.chosen.end}); leave one of the two "
            "sources out"
        )
