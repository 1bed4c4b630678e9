"""A fork as a value: two histories that contradict each other on records known to be committed."""

from __future__ import annotations

from enum import Enum, unique
from typing import NamedTuple

from records.types import Epoch, NodeId, Offset, OffsetAndEpoch


@unique
class Witness(Enum):
    """The thing that contradicts the log."""

    LEADER = "leader"  # its log parts from ours
    SNAPSHOT = "snapshot"  # a leader's checkpoint has other epochs
    STATE = "state"  # a state of this node holds committed records that the log does not have


class Fork(NamedTuple):
    """Both ends of a fork.

    `committed` is the end of the records that were known to be committed, with the epoch of the
    last one; `other` is the end, by offset and epoch, of what contradicts them.
    """

    witness: Witness
    committed: OffsetAndEpoch
    other: OffsetAndEpoch
    parts_at: Offset  # the histories part here, or before
    leader_id: NodeId | None = None
    leader_epoch: Epoch | None = None

    def __str__(self) -> str:
        here, there = self.committed, self.other
        if self.witness is Witness.STATE:
            return (
                f"this node's state holds the committed records below offset {here.offset}, the "
                f"last of epoch {here.epoch}, but its log has epoch {there.epoch} there"
            )
        known = (
            f"this node knew the records below offset {here.offset}, the last of epoch "
            f"{here.epoch}, to be committed"
        )
        leader = f"leader {self.leader_id} of epoch {self.leader_epoch}"
        if self.witness is Witness.SNAPSHOT:
            return (
                f"{known}, but a checkpoint of the log up to offset {there.offset}, epoch "
                f"{there.epoch}, has other records before offset {self.parts_at}"
            )
        return (
            f"{known}, but {leader} has other records from offset {self.parts_at} on (its epoch "
            f"{there.epoch} ends at offset {there.offset})"
        )
