"""Chunks place local segments and lead consumers; KIP-1114's table, test plan, and the traps.

Source: KIP-1114, Chunk Definition and Test Plan; docs/design/chunks.md.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coordinator.controller import chunk_placement
from diskless.fetch import chunk_routing
from diskless.fetch.local_segments.cache import LocalSegments
from diskless.placement import Redirects
from diskless.stores.faults import Fault, FaultRule
from records.kafka_errors import ErrorCode
from tests.diskless.chunk_world import Chunks, story

TEN, NEXT = tuple(range(10)), tuple(range(10, 20))
RACKS = {0: "a", 1: "b", 2: "c"}


# --- KIP-1114's table of what moves, and its test plan --------------------------------------------


def test_each_chunk_is_kept_by_its_replicas_as_in_the_kips_table() -> None:
    async def work(told: Chunks) -> None:
        for replicas in ((1, 3, 4), (0, 2, 4), (0, 1, 2)):
            await told.write(4, broker_id=3)
            assert await told.create(*replicas) == 0
        await told.settle()
        table = {(0, 1, 2): range(4), (1, 3, 4): range(4, 8), (0, 2, 4): range(8, 12)}
        for broker_id in told.brokers:
            expected = {at for replicas in table for at in table[replicas] if broker_id in replicas}
            assert told.kept(broker_id) == expected, broker_id
        told.forget()
        before = told.gets
        for broker_id, offsets in await told.read():
            for replicas, chunk in table.items():
                assert broker_id in replicas or not set(offsets) & set(chunk)
        assert told.gets == before, "each chunk's replicas have it on their disks"

    story(work, brokers=(0, 1, 2, 3, 4), replicas=(0, 1, 2))


def test_a_consumer_reads_each_chunk_from_its_broker() -> None:
    async def work(told: Chunks) -> None:
        await told.write(10, broker_id=0)
        assert await told.create(1) == 0
        await told.write(10, broker_id=1)
        assert await told.read() == [(0, TEN), (1, NEXT)]

    story(work)


def test_a_consumer_reads_a_chunk_that_moved_from_its_new_broker_without_a_get() -> None:
    async def work(told: Chunks) -> None:
        await told.write(10, broker_id=0)
        assert await told.create(1) == 0
        await told.write(10, broker_id=1)
        await told.settle()
        before = told.gets
        await told.move(0, 2)
        await told.settle()
        assert told.gets == before + 10, "one for each object"
        assert [told.kept(one) for one in (0, 1, 2)] == [set(), set(NEXT), set(TEN)]
        told.forget()
        before = told.gets
        assert await told.read() == [(2, TEN), (1, NEXT)]
        assert told.gets == before

    story(work)


# --- where clients are led ------------------------------------------------------------------------


def test_metadata_names_the_active_chunks_replicas_and_those_that_serve_as_isr() -> None:
    async def work(told: Chunks) -> None:
        await told.write(1, broker_id=0)
        assert await told.create(2, 1) == 0
        await told.write(1, broker_id=0)
        assert await told.create(1, 2) == 0
        found = await told.metadata()
        assert found.leader_id in (1, 2)
        assert (found.replica_nodes, found.isr_nodes) == ((1, 2), (1, 2))
        leader_id, other = found.leader_id, 3 - found.leader_id
        await told.world.fence(leader_id)
        found = await told.metadata()
        assert (found.leader_id, found.isr_nodes) == (other, (other,))
        assert (found.replica_nodes, found.offline_replicas) == ((1, 2), (leader_id,))
        assert found.chunks[1].replica_nodes == (2, 1)
        assert found.chunks[1].isr_nodes == (other,)
        await told.world.fence(other)
        found = await told.metadata()
        assert (found.leader_id, found.replica_nodes) == (0, (1, 2, 0))
        assert (found.isr_nodes, found.chunks[1].isr_nodes) == ((0,), (0,)), "any broker serves"

    story(work, replicas=(0, 1))


def test_a_consumer_is_led_to_a_replica_that_serves() -> None:
    async def work(told: Chunks) -> None:
        await told.write(10, broker_id=0)
        assert await told.create(2, 0) == 0
        await told.write(10, broker_id=2)
        await told.world.fence(1)
        assert await told.read() == [(0, tuple(range(20)))], "of the closed chunk 1 is fenced"
        await told.world.fence(0)
        assert await told.read(host="10.0.0.8") == [(2, tuple(range(20)))], "no replica serves"

    story(work, replicas=(0, 1))


def test_a_client_stays_in_its_rack_if_a_chunk_has_no_replica_there() -> None:
    async def work(told: Chunks) -> None:
        await told.write(10, broker_id=0)
        assert await told.create(1) == 0
        await told.write(10, broker_id=1)
        assert (await told.metadata("c")).leader_id == 2
        assert await told.read(rack="c") == [(2, tuple(range(20)))]
        await told.settle()
        assert told.kept(2) == set(range(20)), "so the broker of that rack keeps what it serves"
        assert told.kept(1) == set(NEXT)
        assert await told.read(host="10.0.0.8", rack="b") == [(1, tuple(range(20)))]
        assert await told.read(host="10.0.0.9", rack="x") == [(0, TEN), (1, NEXT)], "no such rack"

    story(work, racks=RACKS)


def test_brokers_that_disagree_send_no_consumer_round_in_circles() -> None:
    async def work(told: Chunks) -> None:
        await told.write(10, broker_id=0)
        assert await told.create(1) == 0
        await told.write(10, broker_id=1)
        told.world.cluster(1).pause()  # it goes on to think that broker 0 has the chunk
        await told.move(0, 2)
        told.world.cluster(0).pause()
        await told.move(0, 1)
        told.world.cluster(2).pause()
        await told.move(0, 0)
        read = await told.read()
        assert [at for _, offsets in read for at in offsets] == list(range(20))

    story(work)


@pytest.mark.parametrize("version", [4, 10])
def test_a_consumer_that_cannot_be_led_is_served_anywhere(version: int) -> None:
    async def work(told: Chunks) -> None:
        await told.write(10, broker_id=0)
        assert await told.create(1) == 0
        await told.write(10, broker_id=1)
        assert await told.read(version=version) == [(1, tuple(range(20)))]

    story(work)


def test_consumers_spread_over_the_replicas_of_a_closed_chunk() -> None:
    async def work(told: Chunks) -> None:
        await told.write(10, broker_id=0)
        assert await told.create(2, 3) == 0
        await told.write(1, broker_id=2)
        first = [(await told.read(host=f"10.0.1.{host}"))[0][0] for host in range(12)]
        assert set(first) == {0, 1}

    story(work, brokers=(0, 1, 2, 3), replicas=(0, 1))


# --- warming --------------------------------------------------------------------------------------


def test_warming_reads_after_a_restart_what_the_segments_lack() -> None:
    async def work(told: Chunks) -> None:
        await told.write(6, broker_id=0)
        assert await told.create(1) == 0
        await told.move(0, 2)
        await told.settle()
        broker = told.brokers[2]
        await broker.end_segments()
        told.forget()
        before = told.gets
        await broker.begin_segments(told.directory / "2")
        await told.settle()
        assert (told.gets, told.kept(2)) == (before, set(range(6)))

    story(work)


def test_warming_goes_on_after_the_store_failed() -> None:
    async def work(told: Chunks) -> None:
        await told.write(6, broker_id=0)
        assert await told.create(1) == 0
        broker = told.brokers[2]
        broker.store.rules = (FaultRule(fault=Fault.ERROR),)
        await told.move(0, 2)
        await told.settle()
        assert told.kept(2) == set()
        broker.store.rules = ()
        await told.settle()
        assert told.kept(2) == set(range(6))

    story(work)


def test_warming_takes_no_other_segments_place() -> None:
    async def work(told: Chunks) -> None:
        await told.write(8, broker_id=0, size=9_000)
        assert await told.create(1) == 0
        await told.settle()
        await told.move(0, 2)
        await told.settle()
        segments = told.brokers[2].segments
        assert segments is not None
        assert 0 < segments.size_bytes <= 32_000, "half of the budget"
        assert not segments.counters.discarded
        assert segments.counters.unwarmed_bytes > 30_000

    story(work, max_bytes=64_000)


# --- requests -------------------------------------------------------------------------------------


def test_a_chunk_is_not_created_if_another_one_was_created_since_the_request_was_planned() -> None:
    async def work(told: Chunks) -> None:
        await told.write(3, broker_id=0)
        assert await told.create(1, active_start=0) == 0
        await told.write(3, broker_id=0)
        assert await told.create(2, active_start=0) == ErrorCode.INVALID_UPDATE_VERSION
        assert await told.create(2, active_start=3) == 0

    story(work)


# --- mutants --------------------------------------------------------------------------------------


def redirects_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client is sent away each time that it comes."""
    monkeypatch.setattr(Redirects, "may_send", lambda *_: True)


def chunks_end_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer goes on into the next chunk."""
    route = chunk_routing.ChunkRouting.route

    def without_end(self, *asked):
        found = route(self, *asked)
        return None if found is None else found._replace(last_offset=None)

    monkeypatch.setattr(chunk_routing.ChunkRouting, "route", without_end)


def rack_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client is led to a replica in whatever rack."""
    chosen = chunk_placement.broker_to_read

    def anywhere(*asked, **more):
        return chosen(*asked, **{**more, "rack": None})

    monkeypatch.setattr(chunk_routing, "broker_to_read", anywhere)


def dead_replica_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Consumers are led to the first replica, whether it serves or not."""

    def first(_topic_id, _index, span, *, here, **_):
        return None if here in span.replicas else span.replicas[0]

    monkeypatch.setattr(chunk_routing, "broker_to_read", first)


def moved_chunk_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker keeps whatever it has or reads."""
    begin = LocalSegments.begin

    async def begin_keeping(self):
        self.keeps = lambda *_: True
        await begin(self)

    monkeypatch.setattr(LocalSegments, "begin", begin_keeping)


def warming_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warming reads on when the disk's budget is used up."""
    monkeypatch.setattr(LocalSegments, "can_fill", lambda *_: True)


MUTANTS = {
    redirects_without_memory: test_brokers_that_disagree_send_no_consumer_round_in_circles,
    chunks_end_ignored: test_a_consumer_reads_each_chunk_from_its_broker,
    rack_ignored: test_a_client_stays_in_its_rack_if_a_chunk_has_no_replica_there,
    dead_replica_chosen: test_a_consumer_is_led_to_a_replica_that_serves,
    moved_chunk_kept: test_a_consumer_reads_a_chunk_that_moved_from_its_new_broker_without_a_get,
    warming_without_bound: test_warming_takes_no_other_segments_place,
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_each_mutant_of_chunk_placement_is_found(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        MUTANTS[mutant]()
