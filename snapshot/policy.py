"""Decides when a checkpoint is taken. Pure.

Too often wears the disk, too seldom makes starting slow and the log long. Three rules, any of which
is enough, and none of which applies while nothing was committed since the last one:

- *Changed*: so much of the state is no longer what the checkpoint says that loading it and then
  replaying is work done twice (`min_changed_ratio`), **and** the log since then is long enough to
  matter (`max_bytes_between`). This is KIP-630's rule.
- *Grown*: the log since then is longer than the checkpoint itself, and than `max_bytes_between`. A
  log that only adds never reaches the ratio, and would be kept for ever without this one; every
  byte is still written at most about twice.
- *Old*: `max_interval_ms` has passed.

The surprise is the stagger. All replicas apply the same log, so all would generate at the same
moment. A node with a higher id waits for somewhat more bytes, never for less than was configured,
and takes the interval somewhat shorter, never longer.

Source: docs/design/snapshots.md#when-a-snapshot-is-taken; KIP-630, When to Snapshot; KIP-876 (the
interval). KIP-631's leader-ordered snapshots are not built, as upstream.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

_STAGGER_STEPS: Final = 8
_STAGGER_PER_STEP: Final = 1 / 16


class Reason(Enum):
    """The rule by which a checkpoint is taken."""

    CHANGED = "changed"
    GROWN = "grown"
    OLD = "old"
    ASKED = "asked"


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSettings:
    """The operator's settings.

    Raises:  ValueError naming the field, if one is impossible.
    """

    min_changed_ratio: float = 0.5  # metadata.snapshot.min.changed_records.ratio
    max_bytes_between: int = 20 * 1024 * 1024  # metadata.log.max.record.bytes.between.snapshots
    max_interval_ms: int = 3_600_000  # metadata.log.max.snapshot.interval.ms; 0: no such rule

    def __post_init__(self) -> None:
        if not 0 <= self.min_changed_ratio <= 1:
            raise ValueError(f"min_changed_ratio={self.min_changed_ratio} is not within 0..1")
        if self.max_bytes_between < 1:
            raise ValueError(f"max_bytes_between={self.max_bytes_between} is not positive")
        if self.max_interval_ms < 0:
            raise ValueError(f"max_interval_ms={self.max_interval_ms} is negative")


class Situation(NamedTuple):
    """The bytes, records and time since the newest checkpoint, or since the log's beginning."""

    bytes_since: int  # of the log, applied
    records_since: int  # offsets applied
    ms_since: int
    changed_records: int
    total_records: int  # that a checkpoint would hold now
    checkpoint_bytes: int  # of the newest; 0: there is none


@dataclass(frozen=True, slots=True)
class SnapshotPolicy:
    """The rules, for one node."""

    settings: SnapshotSettings
    node_id: int = 0

    @property
    def stagger(self) -> float:
        """Return a fraction in [0, 0.5), derived from the node id, to spread checkpoints."""
        return self.node_id % _STAGGER_STEPS * _STAGGER_PER_STEP

    @property
    def bytes_between(self) -> int:
        """Return the bytes of log between two checkpoints: 1 to 1.5 times the configured number."""
        return int(self.settings.max_bytes_between * (1 + self.stagger))

    @property
    def interval_ms(self) -> int:
        """Return the longest time in ms between checkpoints, less this node's stagger."""
        return int(self.settings.max_interval_ms * (1 - self.stagger))

    def should_take(self, now: Situation) -> Reason | None:
        """Return the name of the rule that requires a checkpoint now, or None if no rule does.

        >>> policy = SnapshotPolicy(SnapshotSettings(max_bytes_between=100))
        >>> policy.should_take(Situation(100, 5, 0, 1, 2, 0))
        <Reason.CHANGED: 'changed'>
        >>> policy.should_take(Situation(99, 5, 0, 1, 2, 0))
        """
        if now.records_since == 0:
            return None
        long_enough = now.bytes_since >= self.bytes_between
        if long_enough and now.changed_records >= (
            self.settings.min_changed_ratio * max(1, now.total_records)
        ):
            return Reason.CHANGED
        if now.bytes_since > max(self.bytes_between, now.checkpoint_bytes):
            return Reason.GROWN
        if self.settings.max_interval_ms and now.ms_since >= self.interval_ms:
            return Reason.OLD
        return None
