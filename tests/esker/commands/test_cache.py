"""`esker cache describe`, and a whole broker with local segments: sockets, threads, a disk.

Source: docs/broker.md, Local segments.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from diskless.broker import Broker, NotStartedError
from diskless.fetch.local_segments.cache import LocalSegments
from diskless.stores.memory import MemoryStore
from records.rpc.fetch import FetchRequest, FetchResponse
from records.rpc.produce import ProduceRequest, ProduceResponse
from tests.diskless.broker_world import ask_at, running_broker
from tests.diskless.cluster_world import ClusterWorld
from tests.diskless.records_world import batch, fetching
from tests.waiting import wait_until_async


def port(broker: Broker) -> int:
    return broker.listeners["PLAIN"].port


async def produce(broker: Broker, records: bytes) -> None:
    sent = ProduceRequest.TopicProduceData
    request = ProduceRequest(
        acks=-1,
        timeout_ms=30_000,
        topic_data=(
            sent(name="t", partition_data=(sent.PartitionProduceData(index=0, records=records),)),
        ),
    )
    answer = await ask_at(port(broker), request, ProduceResponse, 11)
    assert not answer.responses[0].partition_responses[0].error_code, answer


async def fetch(broker: Broker, offset: int) -> bytes:
    request: FetchRequest = fetching("t", [(0, offset)])
    answer = await ask_at(port(broker), request, FetchResponse, 12)
    return bytes(answer.responses[0].partitions[0].records or b"")


def metrics(broker: Broker) -> dict[str, float]:
    registry = CollectorRegistry()

    class Collector:
        collect = staticmethod(broker.metrics)

    registry.register(Collector())
    lines = generate_latest(registry).decode().splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name.removeprefix("esker_broker_"): float(value) for name, value in pairs}


async def serve(directory: Path) -> None:
    """Write and read by a broker with local segments; find them again after its end."""
    async with ClusterWorld(brokers=()) as world:
        store = MemoryStore(world.wall_ms)
        settings = {"store": store, "esker_cache_dir": str(directory)}
        async with running_broker(world, **settings) as broker:
            await world.create("t")
            for number in range(20):
                records = batch(number, 7, now_ms=world.wall_ms(), size=500)
                await produce(broker, records)
            expected = await fetch(broker, 0)
            segments = broker.services.segments
            assert segments is not None
            await wait_until_async(
                lambda: segments.counters.written_bytes == len(expected),
                "all is written to local segments",
            )
            for key in store.objects:
                broker.services.cache.forget(key)
            assert await fetch(broker, 0) == expected
            with pytest.raises(NotStartedError, match="is used by another process"):
                await running_broker(world, 2, **settings).__aenter__()
            seen = metrics(broker)
            assert not list(broker.degradations())
        assert seen["store_gets_total"] == 0
        assert seen['local_segments{kind="tail"}'] == 1
        assert seen['local_segments{kind="catch-up"}'] == 0
        assert seen["local_segment_written_bytes_total"] == len(expected)
        assert seen["local_segment_hits_total"] >= 1
        assert seen["local_segment_read_bytes_total"] >= len(expected)
        again = LocalSegments(segments._settings, wall_ms=world.wall_ms)
        await again.begin()
        assert (len(again), again.fault) == (1, None)
        await again.close()


def test_cache_describe_prints_and_verifies_the_segments_that_a_broker_served_from(
    tmp_path, esker
) -> None:
    directory = tmp_path / "cache"
    asyncio.run(serve(directory))
    ran = esker("cache", "describe", str(directory), "--verify", "--json")
    assert (ran.code, ran.err) == (0, "")
    described = json.loads(ran.out)
    (segment,) = described["segments"]
    assert described["nodeId"] == 1
    assert (segment["kind"], segment["firstOffset"], segment["endOffset"]) == ("tail", 0, 40)
    assert (segment["missingOffsets"], segment["state"]) == (0, "sound")
    (log,) = directory.glob("*/*.log")
    assert esker("dump-log", "--verify", str(log)).code == 0
    log.write_bytes(bytes(log.stat().st_size))
    ran = esker("cache", "describe", str(directory), "--verify")
    assert ran.code == 1
    assert "ranges damaged" in ran.out
    assert esker("cache", "describe", str(directory)).code == 0


def test_cache_describe_of_another_directory_says_which_one_to_name(tmp_path, esker) -> None:
    ran = esker("cache", "describe", str(tmp_path))
    assert ran.code == 1
    assert f"{tmp_path} has no meta.properties: name a broker's esker.cache.dir" in ran.err
    assert esker("cache", "describe", str(tmp_path / "away")).code == 1


def test_cache_describe_of_several_brokers_names_the_directory_of_each(tmp_path, esker) -> None:
    for name in ("202", "201", "1000", "photos"):
        (tmp_path / name).mkdir()
    for node_id in (201, 202, 1000):
        text = f"version=1\ncluster.id=c-1\nnode.id={node_id}\n"
        (tmp_path / str(node_id) / "meta.properties").write_text(text)
    ran = esker("cache", "describe", str(tmp_path))
    named = ", ".join(str(tmp_path / name) for name in ("201", "202", "1000"))
    assert (ran.code, ran.err) == (
        1,
        f"esker: {tmp_path} has the directories of several brokers: name one of {named}\n",
    )
