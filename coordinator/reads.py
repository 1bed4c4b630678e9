"""What is read from applied state: the narrow interfaces that memory and database both have.

`Runs` serves brokers and consumers: findBatches and listOffsets are written against it, once.
`Candidates` serves the leader's sweeps: each method says *what might be due*, a bounded number, and
`coordinator.decide` then looks at the pending tables before it says that it is.

Lists of objects to delete come from here, that is from what is applied, and never from pending
state: a mark that is lost with its leader must not have deleted anything.

Source: DESIGN §7.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from coordinator.runs import Run, StoredObject
from coordinator.state import LogId, ProducerKey


class Runs(Protocol):
    """Live runs, in the order of their offsets."""

    def runs_from(self, log_id: LogId, offset: int) -> Iterable[Run]:
        """The run that holds `offset` and those after it; whoever reads them stops when it likes.

        `offset` is at or above the log start and below the high watermark.
        """

    def first_run_since(self, log_id: LogId, timestamp: int) -> Run | None:
        """The first live run whose max timestamp is at least `timestamp`."""

    def run_of_max_timestamp(self, log_id: LogId) -> Run | None:
        """The first live run of those with the greatest max timestamp; None if there is none."""


class Candidates(Protocol):
    """What a sweep may have to act on. Every answer is bounded by its `limit`."""

    def stored_object(self, object_id: int) -> StoredObject | None:
        """An object that was committed and is not removed."""

    def unused_objects(self, limit: int) -> list[int]:
        """Objects with no used bytes, not yet marked; by rising id."""

    def marked_objects(self, first_ms: int, last_ms: int, limit: int) -> list[tuple[int, int]]:
        """(marked at, object id) of objects marked in [first_ms, last_ms], by rising (time, id)."""

    def idle_producers(self, appended_before_ms: int, limit: int) -> list[ProducerKey]:
        """Producers that last appended before it, in no order that matters."""

    def producers_of(self, log_id: LogId, limit: int) -> list[ProducerKey]:
        """Some of a partition's producers."""

    def last_offset_of_runs(self, log_id: LogId, limit: int) -> int | None:
        """The last offset of the `limit`th live run, or of the last if there are fewer.

        None if there is none.
        """
