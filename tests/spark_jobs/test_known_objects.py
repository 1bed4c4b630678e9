"""Tests what a log says about object ids against the coordinator's own tables.

Source: docs/design/batch-coordinator.md#object-leases, docs/design/pipeline.md#orphans.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

import numpy as np
import pytest

from coordinator.batch.id_ranges import contains
from coordinator.batch.memory import InMemoryState
from coordinator.batch.state import LeaseFinder
from records.frame import encode_record
from records.metadata import NoOpRecord
from spark_jobs.orphans.known_objects import Kind, KnownObjects, known_objects_of
from spark_jobs.readers.logs import LogsError
from tests.examples import seeds
from tests.spark_jobs.orphans_world import RecordedLife, Values


def expected(state: InMemoryState, object_id: int) -> Kind:
    """Classify an id from the coordinator's tables."""
    stored = state.objects.get(object_id)
    if stored is not None:
        return Kind.LIVE if stored.marked_at_ms < 0 else Kind.MARKED
    if object_id >= state.counters.next_object_id:
        return Kind.NOT_GIVEN
    lease_id = LeaseFinder(state).find(object_id)
    if lease_id is None:
        return Kind.ORPHAN
    lease = state.leases[lease_id]
    if lease.is_open:
        return Kind.LEASED
    return Kind.OF_LEASE if contains(lease.orphans, object_id) else Kind.ORPHAN


class Watched(RecordedLife):
    """A random history whose log is read from outside now and then."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.steps = 0
        self.dead: set[int] = set()
        self.met: Counter[str] = Counter()
        self.looks = Random(seed)
        self.checkpoint: tuple[list[bytes], int] | None = None

    async def check(self) -> None:
        await super().check()
        self.steps += 1
        if self.steps % 40 == 20:
            self.look()
        if self.looks.random() < 0.01:
            self.checkpoint = (await self.world.checkpoint(), len(self.records))

    def look(self) -> None:
        state = self.world.coordinator.state
        end = len(self.records)
        spans = [Values(self.records, end_offset=end)]
        if self.checkpoint is not None:
            values, at = self.checkpoint
            spans = [Values(values, True, end_offset=at), Values(self.records[at:], False, at, end)]
            self.met["checkpoints"] += 1
        known = known_objects_of(spans, end, coordinator=0)  # type: ignore[arg-type]
        ids = list(range(state.counters.next_object_id + 3))
        kinds = [Kind(kind) for kind in known.classify(np.array(ids)).tolist()]
        assert kinds == [expected(state, object_id) for object_id in ids]
        assert known.size_of(known.live).tolist() == [
            state.objects[object_id].size_bytes for object_id in known.live.tolist()
        ]
        self.met.update(kind.name for kind in kinds)
        self.orphans_stay_orphans(known)

    def orphans_stay_orphans(self, known: KnownObjects) -> None:
        """Check that no id that an older reading called an orphan is live now."""
        ids = np.arange(known.next_object_id)
        kinds = known.classify(ids)
        assert not self.dead & set(known.live.tolist())
        self.dead |= set(ids[kinds == Kind.ORPHAN].tolist())


@pytest.mark.parametrize("seed", seeds(3))
def test_the_classification_of_object_ids_in_a_log_agrees_with_the_coordinators_state(
    seed: int,
) -> None:
    """The seed decides the run: repeat one with `-k "classified and 2"`."""
    asyncio.run(Watched(seed).run())


def test_the_random_histories_for_the_classification_contain_every_kind_of_object_id() -> None:
    life = Watched(0)
    asyncio.run(life.run())
    missing = [kind.name for kind in Kind if not life.met[kind.name]]
    assert not missing, f"{missing} never happened: {dict(life.met)}"
    assert life.met["checkpoints"]


def test_reading_objects_from_a_log_with_unknown_records_raises_an_error() -> None:
    unknown = bytes.fromhex("01 ff7f 00 00")
    with pytest.raises(LogsError, match="at offset 1 is of type 16383"):
        known_objects_of([Values([encode_record(NoOpRecord()), unknown])], 2, coordinator=0)  # type: ignore[list-item]


def test_an_empty_coordinator_log_has_no_objects() -> None:
    known = known_objects_of([], 0, coordinator=0)
    assert known.classify(np.array([0, 5])).tolist() == [Kind.NOT_GIVEN, Kind.NOT_GIVEN]
