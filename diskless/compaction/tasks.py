"""The tasks of a rewriter, their settings and their results.

Why apart from the rewriter: that imports NumPy, in a process of its own. A broker plans tasks and
reads results without NumPy, and starts faster.

Source: docs/design/compaction.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from diskless.fetch.runs_reader import Run
from records.final_batches import FinalRun
from records.object_keys import ObjectKeys

MERGED: Final = -1
"""Stands for the bound of a range whose records were all kept."""

MAX_OLD_RUNS: Final = 2_000
"""Old runs of one range: the most that one request replaces."""

SALT_BYTES: Final = 16
"""Random bytes that a round's digests of keys begin with."""


class Source(NamedTuple):
    """Consecutive runs of a partition."""

    topic_id: UUID
    partition: int
    runs: tuple[Run, ...]
    deleted_before: int = 0  # offset at or below the log start; older records are left out


class CompactionTask(NamedTuple):
    """A round of compaction of one partition."""

    source: Source  # from the log start to the bound
    bound: int  # exclusive
    first_dirty: int  # below it, no two records have the same key
    rewritten_until: int  # below it, an earlier attempt has rewritten under this bound
    delete_retention_ms: int
    now_ms: int  # ms since 1970
    last_sequences: dict[int, int]  # of each active producer, by its id
    salt: bytes  # of the keys' digests
    aborted: Mapping[int, Sequence[tuple[int, int]]] = {}
    """By base offset of each run with which the rewriter may begin to read: aborted transactions
    (producer id, first offset) that end there or above. Empty: there is none at all."""

    def aborted_from(self, runs: Sequence[Run]) -> Sequence[tuple[int, int]]:
        """Return the aborted transactions of runs of the source that are read to its end."""
        return self.aborted[runs[0].base_offset] if runs and self.aborted else ()


class RewrittenRange(NamedTuple):
    """Runs of a partition, and those that take their place."""

    topic_id: UUID
    partition: int
    old_runs: tuple[Run, ...]
    bound: int  # or MERGED
    flags: int
    runs: tuple[FinalRun, ...]  # without their bytes
    byte_offsets: tuple[int, ...]  # of the runs, in the object
    ended_aborted: tuple[tuple[int, int], ...] = ()
    """Aborted transactions (producer id, first offset) whose markers are gone."""


class RewrittenObject(NamedTuple):
    """An uploaded object, and what it holds."""

    object_id: int
    size_bytes: int
    ranges: tuple[RewrittenRange, ...]


class Damage(NamedTuple):
    """A run of batches whose bytes are damaged, or whose object is missing or too short."""

    topic_id: UUID
    partition: int
    offset: int  # of the run
    object_key: str
    reason: str


class RewriterSettings(NamedTuple):
    """Bounds of a rewriter, and the owner of its objects."""

    keys: ObjectKeys
    broker_id: int  # -1: a plan
    broker_epoch: int
    object_bytes: int  # source bytes of an object
    map_bytes: int  # of the newest offsets of keys


@dataclass(slots=True)
class Report:
    """The outcome of a task."""

    damages: list[Damage] = field(default_factory=list)
    read_bytes: int = 0
    written_bytes: int = 0
    read_records: int = 0  # that compaction judged
    kept_records: int = 0
    bound: int = MERGED  # of the round, if it was lowered
    is_abandoned: bool = False  # the caller said not to go on

    @property
    def removed_records(self) -> int:
        """Return the number of records that compaction removed."""
        return self.read_records - self.kept_records
