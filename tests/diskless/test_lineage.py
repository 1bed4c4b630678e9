"""A broker acknowledges and deletes only while the store proves that its cluster is the living one.

Source: docs/design/restore.md#the-old-cluster-stops.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

import diskless.produce.writers
from coordinator.controller.image import MetadataImage
from diskless.lineage import (
    Lineage,
    SupersededError,
    claim_key,
    has_conditional_writes,
    write_claim,
)
from diskless.object_deletion import Cleaner
from diskless.produce.object_writer import ObjectWriter
from diskless.stores import ObjectExistsError, StorageError
from diskless.stores.faults import Fault, FaultRule, FaultyStore
from diskless.stores.memory import MemoryStore
from records.kafka_errors import ErrorCode
from records.timelines import TimelineRecord
from tests.diskless.cluster_world import ClusterWorld
from tests.diskless.records_world import RecordsBroker, batch
from tests.diskless.test_cleaning import Scene
from tests.diskless.virtual_time import run

OLD, NEW = "AAAAAAAAAAAAAAAAAAAAAQ", "BBBBBBBBBBBBBBBBBBBBBQ"
FIRST = MetadataImage()
SECOND = MetadataImage(
    timeline=TimelineRecord(
        timeline=1,
        ancestors=(TimelineRecord.Ancestor(cluster_id=OLD, object_ids_below=(5,)),),
    )
)
FETCH = frozenset({"fetch"})
SLOW = FaultRule(fault=Fault.SLOW, operations=frozenset({"upload"}), delay_s=1.0)


class Claims:
    """A store, a clock, and the lineage of a broker of the old cluster."""

    def __init__(
        self, cluster_id: str = OLD, image: MetadataImage = FIRST, kind: type[Lineage] = Lineage
    ) -> None:
        self.now_s = 100.0
        self.superseded: list[SupersededError] = []
        self.memory = MemoryStore(lambda: 0)
        self.store = FaultyStore(self.memory, Random(1), _no_sleep)
        self.lineage = kind(
            self.store,
            key_prefix="p",
            cluster_id=cluster_id,
            image=lambda: image,
            timeout_s=30.0,
            on_superseded=self.superseded.append,
            clock=lambda: self.now_s,
        )

    async def restore(self, cluster_id: str = NEW, digest: str = "1" * 64) -> None:
        """Claim the data for a new cluster."""
        await write_claim(self.store, claim_key("p", OLD, 1), cluster_id, digest)


async def _no_sleep(_: float) -> None:
    pass


def test_a_cluster_that_was_never_restored_writes_its_claim_and_is_proved() -> None:
    async def story() -> None:
        claims = Claims()
        assert not claims.lineage.is_proved
        await claims.lineage.begin()
        assert claims.lineage.is_proved
        assert claims.memory.objects[claim_key("p", OLD, 0)][0].startswith(OLD.encode())

    run(story)


def _proof_expires(kind: type[Lineage]) -> None:
    async def story() -> None:
        claims = Claims(kind=kind)
        fetch = claims.memory.fetch

        async def slow(*words: Any) -> Any:
            claims.now_s += 10.0
            return await fetch(*words)

        claims.memory.fetch = slow  # type: ignore[method-assign]
        await claims.lineage.begin()
        claims.now_s = 129.9
        assert claims.lineage.is_proved
        claims.now_s = 130.0  # 30 s after the read was sent, although 10 s after its answer
        assert not claims.lineage.is_proved

    run(story)


def test_a_proof_is_valid_from_the_time_before_its_read_was_sent() -> None:
    _proof_expires(Lineage)


def _superseded(kind: type[Lineage]) -> None:
    async def story() -> None:
        claims = Claims(kind=kind)
        await claims.lineage.begin()
        await claims.restore()
        with pytest.raises(SupersededError, match=f"was restored as cluster {NEW}"):
            await claims.lineage.prove()
        assert not claims.lineage.is_proved

    run(story)


def test_the_old_cluster_notices_the_claim_of_a_restore_and_loses_its_proof() -> None:
    _superseded(Lineage)


def test_a_restored_cluster_is_proved_by_the_claim_of_its_restore() -> None:
    async def story() -> None:
        claims = Claims(NEW, SECOND)
        await claims.lineage.begin()
        assert not claims.lineage.is_proved, "without a claim"
        assert (
            claims.lineage.fault
            == f"p/lineage/{OLD}/timeline-1: the claim of this cluster is missing"
        )
        await claims.restore()
        await claims.lineage.begin()
        assert claims.lineage.is_proved

    run(story)


def test_a_cluster_whose_restore_lost_the_race_must_stop() -> None:
    async def story() -> None:
        claims = Claims(NEW, SECOND)
        await claims.restore("CCCCCCCCCCCCCCCCCCCCCQ")
        with pytest.raises(SupersededError):
            await claims.lineage.begin()

    run(story)


def _missing(kind: type[Lineage]) -> None:
    async def story() -> None:
        claims = Claims(kind=kind)
        await claims.lineage.begin()
        del claims.memory.objects[claim_key("p", OLD, 0)]
        with pytest.raises(StorageError, match="missing"):
            await claims.lineage.prove()
        claims.now_s += 31
        assert not claims.lineage.is_proved

    run(story)


def test_a_missing_claim_proves_nothing() -> None:
    _missing(Lineage)


def test_a_store_that_cannot_be_read_proves_nothing_and_a_later_read_does() -> None:
    async def story() -> None:
        claims = Claims()
        claims.store.rules = (FaultRule(fault=Fault.ERROR, operations=FETCH),)
        await claims.lineage.begin()
        assert not claims.lineage.is_proved
        assert claims.lineage.fault
        claims.store.rules = ()
        await claims.lineage.prove()
        assert claims.lineage.is_proved
        assert claims.lineage.fault is None

    run(story)


def test_of_two_restores_of_the_same_cluster_one_wins() -> None:
    async def story() -> None:
        claims = Claims()
        await claims.restore()
        await claims.restore()  # the same plan again
        with pytest.raises(ObjectExistsError):
            await claims.restore("CCCCCCCCCCCCCCCCCCCCCQ")
        with pytest.raises(ObjectExistsError):
            await claims.restore(digest="2" * 64)

    run(story)


def test_a_store_that_ignores_if_none_match_is_found_out() -> None:
    class Overwrites(MemoryStore):
        async def upload(self, key: str, parts: Any, size_bytes: int) -> None:
            self.objects[key] = (b"".join(parts), 0)
            del size_bytes

    async def story() -> None:
        store = MemoryStore(lambda: 0)
        assert await has_conditional_writes(store, "p", NEW)
        assert not store.objects
        assert not await has_conditional_writes(Overwrites(lambda: 0), "p", NEW)

    run(story)


# --- what a broker does --------------------------------------------------------------------------


def _deletes_nothing(cleaner: type[Cleaner]) -> None:
    async def story() -> None:
        async with ClusterWorld() as world:
            scene, claims = Scene(world, 50), Claims()
            scene.cleaner.__class__ = cleaner
            scene.cleaner._lineage = claims.lineage
            await claims.lineage.begin()
            await claims.restore()
            assert claims.lineage.is_proved, "an old proof is valid still"
            assert not await scene.cleaner.clean()
            scene.check(left=50)
            assert len(scene.memory.objects) == 150

    run(story)


def test_the_old_cluster_deletes_nothing_once_the_data_is_claimed() -> None:
    _deletes_nothing(Cleaner)


def test_a_cleaner_with_a_proof_deletes() -> None:
    async def story() -> None:
        async with ClusterWorld() as world:
            scene, claims = Scene(world, 50), Claims()
            scene.cleaner._lineage = claims.lineage
            await claims.lineage.begin()
            assert await scene.cleaner.clean()
            scene.check()

    run(story)


def _acknowledges_nothing(writer: type[ObjectWriter], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diskless.produce.writers, "ObjectWriter", writer)

    async def story() -> None:
        async with ClusterWorld() as world:
            await world.create("t", partitions=1)
            broker = RecordsBroker(world, 1)
            living = True
            broker.writers._is_living = lambda: living
            first = await broker.produce("t", 0, batch(1, now_ms=world.wall_ms()))
            assert first.error_code == 0
            broker.store.rules = (SLOW,)
            sent = asyncio.ensure_future(
                broker.produce("t", 0, batch(2, now_ms=world.wall_ms()), timeout_ms=10_000)
            )
            await asyncio.sleep(0.5)  # the object is on its way
            living = False
            assert (await sent).error_code == ErrorCode.REQUEST_TIMED_OUT
            third = await broker.produce("t", 0, batch(3, now_ms=world.wall_ms()))
            assert third.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            await broker.end()

    run(story)


def test_a_broker_without_a_proof_acknowledges_nothing_and_accepts_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _acknowledges_nothing(ObjectWriter, monkeypatch)


# --- mutants -------------------------------------------------------------------------------------


class CountsFromTheAnswer(Lineage):
    """Counts the timeout from when the answer came."""

    async def prove(self) -> None:
        await super().prove()
        self._proved_at = self._clock()


class LooksAtItsOwnClaimOnly(Lineage):
    """Does not look for the claim of a later timeline."""

    async def prove(self) -> None:
        with contextlib.suppress(SupersededError):
            await super().prove()
        self._proved_at = self._clock()


class TakesAbsenceForLife(Lineage):
    """Takes a missing claim for its own."""

    async def prove(self) -> None:
        with contextlib.suppress(StorageError):
            await super().prove()
        self._proved_at = self._clock()


class DeletesUnderAnOldProof(Cleaner):
    """Reads no claim before it deletes."""

    async def _delete_in_time(self, keys: list[str]) -> None:
        await self._store.delete(keys)


class AcknowledgesAnyway(ObjectWriter):
    """Acknowledges what was committed, proof or not."""

    def _settle(self, written: Any, response: Any) -> None:
        self._is_living = lambda: True
        super()._settle(written, response)


@pytest.mark.parametrize(
    ("story", "mutant"),
    [
        (_proof_expires, CountsFromTheAnswer),
        (_superseded, LooksAtItsOwnClaimOnly),
        (_missing, TakesAbsenceForLife),
        (_deletes_nothing, DeletesUnderAnOldProof),
    ],
)
def test_a_broker_without_one_of_these_rules_is_caught(
    story: Callable[[type[Any]], None], mutant: type[Any]
) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        story(mutant)


def test_a_writer_that_acknowledges_without_a_proof_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(AssertionError):
        _acknowledges_nothing(AcknowledgesAnyway, monkeypatch)
