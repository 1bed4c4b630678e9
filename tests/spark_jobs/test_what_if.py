"""What other settings would do: the model against brokers that run with them.

The measured runs are a broker's own produce and fetch paths on a virtual clock
(`tests.diskless.records_world`), with producers that send at given times. What each run commits is
the history from which the other runs are predicted. `bench.bench_what_if` does it with processes.

Source: docs/what-if.md.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest
from typer.testing import CliRunner

from diskless.produce.closing import ClosingSettings
from diskless.produce.object_writer import WriterSettings
from diskless.stores.memory import MemoryStore
from esker.cli import app
from records.batch import iter_batches
from records.diskless import ObjectCommitRecord
from records.metadata import RegisterBrokerRecord
from records.schema import MetadataRecord
from spark_jobs.what_if.history import (
    MAX_DELAY_MS,
    Commit,
    EmptyHistoryError,
    History,
    history_of,
)
from spark_jobs.what_if.model import LARGE_BYTES, Settings, SettingsError, predict
from tests.diskless.cluster_world import ClusterWorld
from tests.diskless.records_world import RecordsBroker, batch, fetching
from tests.diskless.virtual_time import run
from tests.spark_jobs.logs import mark_committed, write_log

PARTITIONS = 6
SECONDS = 5
TOLERANCE = 0.2


def commit(at_ms: int, *sent: int, broker: int = 1, size: int = 100, partition: int = 0) -> Commit:
    """Return a commit of batches that were sent at these times, to one partition."""
    count = len(sent)
    record = ObjectCommitRecord(
        object_id=at_ms, object_format=0, size_bytes=size * count, broker_id=broker,
        broker_epoch=1, lease_id=0, committed_at_ms=at_ms, topic_ids=(UUID(int=7),),
        topic_indexes=(0,), partitions=(partition,), batch_counts=(count,),
        byte_offsets=tuple(range(0, size * count, size)), byte_sizes=(size,) * count,
        base_offsets=(0,) * count, record_counts=(1,) * count, max_timestamps=sent,
        timestamp_types=(0,) * count, producer_ids=(-1,) * count, producer_epochs=(-1,) * count,
        base_sequences=(-1,) * count, error_codes=(), duplicates=(),
    )  # fmt: skip
    return Commit(0, record)


# --- measured runs --------------------------------------------------------------------------------


def measure(settings: Settings, seed: int = 1) -> tuple[list[Commit], int]:
    """Run brokers under these settings; return what was committed, and the GETs."""
    commits: list[Commit] = []
    counted = 0

    async def on_loop() -> None:
        nonlocal counted
        ids = tuple(range(1, settings.brokers + 1))
        racks = {one: str((one - 1) % settings.zones) for one in ids}
        async with ClusterWorld(brokers=ids, racks=racks) as world:
            topic = await world.create("t", PARTITIONS)
            memory = MemoryStore(world.wall_ms)
            writing = WriterSettings(
                commit_interval_ms=settings.interval_ms,
                buffer_max_bytes=settings.buffer_bytes,
                closing=ClosingSettings(
                    quiet_ms=settings.quiet_ms, objects_per_second=settings.objects_per_second
                ),
            )
            brokers = [RecordsBroker(world, one, memory, settings=writing) for one in ids]
            random, ends = Random(seed), asyncio.get_running_loop().time() + SECONDS
            producers = [
                asyncio.create_task(_produce(world, brokers[0], random.randrange(10**6), ends))
                for _ in range(4)
            ]
            readers = [
                asyncio.create_task(_consume(brokers[zone], ends)) for zone in range(settings.zones)
            ]
            await asyncio.gather(*producers, *readers)
            counted = sum(broker.cache.counters.gets for broker in brokers)
            for _, record in world.leaders[topic.coordinator(0)].log:
                if isinstance(record, ObjectCommitRecord):
                    commits.append(Commit(0, record))
            for broker in brokers:
                await broker.end()

    run(on_loop)
    return commits, counted


async def _produce(world: ClusterWorld, broker: RecordsBroker, seed: int, ends: float) -> None:
    """Send batches at random times, whether earlier ones are answered or not."""
    random, tasks = Random(seed), []
    while asyncio.get_running_loop().time() < ends:
        await asyncio.sleep(random.expovariate(20))
        data = batch(1, now_ms=world.wall_ms(), size=random.randrange(100, 4_000))
        partition = random.randrange(PARTITIONS)
        tasks.append(asyncio.create_task(broker.produce("t", partition, data)))
    assert not [one for one in await asyncio.gather(*tasks) if one.error_code]


async def _consume(broker: RecordsBroker, ends: float) -> None:
    offsets = [0] * PARTITIONS
    while asyncio.get_running_loop().time() < ends:
        request = fetching("t", list(enumerate(offsets)), max_wait_ms=500)
        answer = await broker.fetch_all(request)
        for found in answer.responses[0].partitions:
            assert not found.error_code, found
            offsets[found.partition_index] = max(
                offsets[found.partition_index], end_of(found.records)
            )


def end_of(records: bytes | memoryview | None) -> int:
    """Return the offset behind the last batch, or 0 without batches."""
    return max((one.header.end_offset for one in iter_batches(records or b"")), default=0)


NOW = Settings(brokers=1, objects_per_second=8)
RUNS = {
    "a long interval alone": NOW._replace(interval_ms=1_000, quiet_ms=0),
    "a larger budget": NOW._replace(objects_per_second=20),
    "small buffers": NOW._replace(quiet_ms=0, interval_ms=500, buffer_bytes=20_000),
}


def near(predicted: float, measured: float) -> bool:
    return abs(predicted - measured) <= TOLERANCE * measured


def test_three_measured_runs_were_predicted_from_a_fourth_within_a_fifth() -> None:
    commits, _ = measure(NOW)
    history = history_of(commits, {1: None})
    assert near(predict(history, NOW, NOW).objects, len(commits))
    for name, then in RUNS.items():
        found, _ = measure(then, seed=2)
        predicted = predict(history, NOW, then)
        assert near(predicted.objects, len(found)), (name, predicted.objects, len(found))
        runs = sum(len(one.record.partitions) for one in found)
        assert near(predicted.runs, runs), (name, predicted.runs, runs)


def test_the_gets_of_two_more_zones_were_predicted_from_a_run_with_one() -> None:
    commits, gets = measure(NOW)
    assert gets == 0, "a broker does not read what it wrote"
    history = history_of(commits, {1: "a"})
    then = NOW._replace(brokers=3, zones=3)
    found, gets = measure(then, seed=2)
    assert near(predict(history, NOW, then).gets, gets)
    assert near(gets, 2 * len(found))


# --- the model ------------------------------------------------------------------------------------


def steady(count: int, every_ms: int, size: int = 100, partitions: int = 1) -> History:
    """Return a history of a batch every so often, each in an object of its own."""
    return history_of(
        [
            commit(
                1_000 + at * every_ms, 1_000 + at * every_ms, size=size, partition=at % partitions
            )
            for at in range(count)
        ],
        {1: None},
    )


ALONE = Settings(brokers=1, quiet_ms=0)


@pytest.mark.parametrize("interval_ms", [10, 100, 1_000])
def test_an_interval_bounds_the_objects_of_steady_producers(interval_ms: int) -> None:
    history = steady(2_000, 10)
    now = ALONE._replace(interval_ms=5)
    objects = predict(history, now, ALONE._replace(interval_ms=interval_ms)).objects
    assert objects == 20_000 / interval_ms


def test_objects_end_at_the_buffers_size_and_large_ones_take_no_token() -> None:
    history = steady(1_000, 10, size=LARGE_BYTES)
    now = ALONE._replace(interval_ms=5)
    by_size = ALONE._replace(interval_ms=60_000, buffer_bytes=2 * LARGE_BYTES)
    assert predict(history, now, by_size).objects == 500
    quiet = ALONE._replace(quiet_ms=5, objects_per_second=1, interval_ms=60_000)
    assert predict(history, now, quiet).objects == 1_000


def test_small_objects_are_bounded_by_their_budget() -> None:
    history = steady(3_000, 20)  # a minute
    now = ALONE._replace(interval_ms=5)
    for budget in (2, 10):
        then = ALONE._replace(quiet_ms=5, objects_per_second=budget, interval_ms=60_000)
        assert predict(history, now, then).objects == pytest.approx(60 * budget, rel=0.05)


def test_load_coordinators_and_brokers_make_more_objects() -> None:
    history = steady(800, 25, partitions=16)
    now = ALONE._replace(interval_ms=5)
    here = ALONE._replace(interval_ms=250)
    one = predict(history, now, here)
    four = predict(history, now, here._replace(brokers=4))
    assert 2.5 * one.objects < four.objects <= 4 * one.objects
    ten = predict(history, now, here._replace(load=10.0))
    assert ten.batches == 8_000
    assert one.objects <= ten.objects < 1.2 * one.objects, "the interval bounds them"


def test_readers_get_each_object_once_a_broker_and_more_with_more_connections() -> None:
    history = steady(1_000, 100, partitions=8)
    now = ALONE._replace(interval_ms=5)
    there = ALONE._replace(interval_ms=2_000, brokers=2, zones=2)
    assert predict(history, now, ALONE).gets == 0
    one = predict(history, now, there)
    assert one.gets == pytest.approx(one.objects)
    many = predict(history, now, there._replace(consumers=100))
    assert 6 * one.gets < many.gets < 8 * one.gets
    assert predict(history, now, there._replace(consumers=0)).gets == 0


def test_times_that_no_producer_can_have_meant_are_spread() -> None:
    history = history_of(
        [commit(100_000, 5, 6, 7), commit(101_000, 900_000, 100_990, 101_000 - MAX_DELAY_MS)],
        {},
    )
    assert history.times.min() > 99_000
    assert history.times.max() <= 101_000
    assert 100_990 in history.times


@pytest.mark.parametrize("commits", [[], [commit(5, 5)], [commit(5, 5), commit(5, 4)]])
def test_a_history_without_two_moments_says_what_to_do(commits: Sequence[Commit]) -> None:
    with pytest.raises(EmptyHistoryError, match="produce to the cluster for a minute"):
        history_of(commits, {})


@pytest.mark.parametrize(
    "wrong", [{"brokers": 0}, {"zones": 2}, {"interval_ms": 0}, {"coordinators": 0}]
)
def test_settings_that_no_cluster_has_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        predict(steady(10, 10), ALONE, ALONE._replace(**wrong))


# --- the command ----------------------------------------------------------------------------------


REGISTERED = RegisterBrokerRecord(
    broker_id=1, incarnation_id=UUID(int=1), broker_epoch=0, end_points=(), features=(), rack="a"
)


def write(log_dir: Path, *commits: Commit) -> None:
    """Write a coordinator's log with these commits as a node's directory has it."""
    logs: dict[str, list[list[MetadataRecord]]] = {
        "__cluster_metadata-0": [[REGISTERED]],
        "__diskless-metadata-0": [[one.record] for one in commits],
    }
    mark_committed(log_dir, {name: write_log(log_dir / name, logs[name]) for name in logs})


def what_if(log_dir: Path, *words: str) -> Any:
    return CliRunner().invoke(app, ["spark", "what-if", "--log-dir", str(log_dir), *words])


def test_the_command_compares_now_and_then(tmp_path: Path) -> None:
    write(tmp_path, *(commit(at, at - 20) for at in range(1_000_000, 1_060_000, 100)))
    ran = what_if(tmp_path, "--interval-ms", "2000", "--quiet-ms", "0", "--json")
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout)
    assert found["history"] == {"objects": 600, "batches": 600, "durationMs": 60_000}
    assert found["now"]["objectsPerSecond"] == pytest.approx(10)
    assert found["then"]["settings"]["intervalMs"] == 2_000
    assert found["then"]["objectsPerSecond"] < 1
    shown = what_if(tmp_path, "--interval-ms", "2000", "--quiet-ms", "0").stdout
    assert "intervalMs 250 -> 2000, quietMs 5 -> 0" in shown
    assert "PUTs and commits a second" in shown
    refused = what_if(tmp_path, "--zones", "3")
    assert refused.exit_code == 2
    assert "give --brokers, too" in refused.output


@pytest.mark.parametrize("commits", [(), (commit(5, 5),)])
def test_the_command_says_what_an_empty_log_lacks(
    tmp_path: Path, commits: Sequence[Commit]
) -> None:
    write(tmp_path, *commits)
    ran = what_if(tmp_path, "--interval-ms", "2000")
    assert ran.exit_code == 2
    assert f"the logs have {len(commits)} commits" in ran.output
    assert "produce to the cluster for a minute" in ran.output
