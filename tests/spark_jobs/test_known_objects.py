"""What a log says of object ids, beside what a coordinator knows.

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
    """The same, asked of the coordinator's tables one by one."""
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
    """A random life that is looked at, now and then, from outside."""

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
        """Also for a log that is long out of date: of all that it called orphans, none lives."""
        ids = np.arange(known.next_object_id)
        kinds = known.classify(ids)
        assert not self.dead & set(known.live.tolist())
        self.dead |= set(ids[kinds == Kind.ORPHAN].tolist())


@pytest.mark.parametrize("seed", seeds(3))
def test_ids_are_what_their_coordinator_holds_them_for_all_its_life(seed: int) -> None:
    """A run is its seed: repeat one with `-k "life and 2"`."""
    asyncio.run(Watched(seed).run())


def test_every_kind_is_met() -> None:
    life = Watched(0)
    asyncio.run(life.run())
    missing = [kind.name for kind in Kind if not life.met[kind.name]]
    assert not missing, f"{missing} never happened: {dict(life.met)}"
    assert life.met["checkpoints"]


def test_a_log_with_records_that_are_not_known_says_nothing() -> None:
    unknown = bytes.fromhex("01 ff7f 00 00")
    with pytest.raises(LogsError, match="at offset 1 is of type 16383"):
        known_objects_of([Values([encode_record(NoOpRecord()), unknown])], 2, coordinator=0)  # type: ignore[list-item]


def test_an_empty_log_knows_of_nothing() -> None:
    known = known_objects_of([], 0, coordinator=0)
    assert known.classify(np.array([0, 5])).tolist() == [Kind.NOT_GIVEN, Kind.NOT_GIVEN]
