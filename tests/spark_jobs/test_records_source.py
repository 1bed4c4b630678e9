"""`esker_records` on a real cluster: the rows that librdkafka's consumer reads, each of them once.

Brokers merge and compact all the time, and delete what they replace a second later.

Source: docs/tables.md.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from typer.testing import CliRunner

from esker.commands.spark import app as spark_commands
from spark_jobs.readers.object_store import StoreOptions, open_store
from spark_jobs.source.option_error import OptionError
from spark_jobs.topics.coordinates import CoordinatesError, LostOffsetsError, TopicPartition
from spark_jobs.topics.planning import RecordsPartition
from spark_jobs.topics.records_source import EskerRecords, RecordsReader
from spark_jobs.topics.records_stream import RecordsStreamReader, limit_ends
from tests.clients.cluster import EskerCluster
from tests.diskless.stores.conftest import new_bucket, s3_endpoint
from tests.examples import seeds
from tests.spark_jobs.topics_world import (
    SETTINGS,
    Row,
    TopicsWorld,
    objects_in,
    offsets,
    read_rows,
    rows_of,
)
from tests.waiting import wait_until

__all__ = ["s3_endpoint"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TopicsWorld]:
    """A cluster with a topic of random records, whose first 40 of partition 0 are deleted."""
    home = tmp_path_factory.mktemp("cluster")
    with EskerCluster(home, quorum=(1,), brokers=1, settings=SETTINGS) as running:
        running.start()
        running.finalize_transactions(2)
        world = TopicsWorld(running)
        world.create("random")
        world.fill("random", seed=1)
        world.delete_records("random", 0, 40)
        yield world


def planned(world: TopicsWorld, **options: str) -> tuple[RecordsReader, list[RecordsPartition]]:
    """Return a reader and the tasks that it plans."""
    source = EskerRecords({**world.options, **options})
    reader = source.reader(source.schema())
    assert isinstance(reader, RecordsReader)
    tasks: list[Any] = list(reader.partitions())
    return reader, tasks


def test_rows_of_random_topics_are_those_that_a_consumer_reads(world: TopicsWorld) -> None:
    expected = world.consume("random")
    assert len(expected) == 1460
    assert world.read(subscribe="random") == expected
    assert world.read(assign='{"random":[1]}') == [row for row in expected if row[1] == 1]
    assert world.read(subscribePattern="r.ndom|none") == expected


@pytest.mark.parametrize("seed", seeds(1))
def test_rows_of_other_random_topics_are_those_that_a_consumer_reads(
    world: TopicsWorld, seed: int
) -> None:
    random_ = random.Random(seed)
    topic, partitions = f"random-{seed}", random_.randint(1, 4)
    world.create(topic, partitions)
    world.fill(topic, seed=seed, count=random_.randint(1, 400), partitions=partitions)
    expected = world.consume(topic)
    _, index, before = random_.choice(expected)[:3]
    world.delete_records(topic, index, before)
    expected = [row for row in expected if row[1] != index or row[2] >= before]
    assert world.consume(topic) == expected
    limit = str(random_.randint(1, len(expected)))
    assert world.read(subscribe=topic) == expected
    assert world.read(subscribe=topic, maxRecordsPerPartition=limit) == expected


def test_rows_of_compacted_topics_are_those_that_a_consumer_reads(world: TopicsWorld) -> None:
    world.create(
        "compacted", cleanup_policy="compact", min_cleanable_dirty_ratio="0.01",
        delete_retention_ms="100",
    )  # fmt: skip
    world.fill("compacted", seed=2)
    wait_until(lambda: len(world.consume("compacted")) < 750, "compaction removes half of the rows")

    def agrees() -> bool:
        before, rows = world.consume("compacted"), world.read(subscribe="compacted")
        if before != world.consume("compacted"):
            return False  # compaction went on meanwhile
        assert rows == before
        return True

    wait_until(agrees, "compaction rests during a read")


def test_rows_of_append_time_topics_have_the_time_of_their_append(world: TopicsWorld) -> None:
    world.create("stamped", message_timestamp_type="LogAppendTime")
    world.fill("stamped", seed=3, count=60)
    rows = world.read(subscribe="stamped")
    assert rows == world.consume("stamped")
    assert {row[4] for row in rows} == {1}


def test_read_committed_leaves_out_aborted_and_open_transactions(world: TopicsWorld) -> None:
    world.create("paid", 1)
    producer = world.producer(**{"transactional.id": "t"})
    producer.init_transactions()
    for number in range(12):
        producer.begin_transaction()
        for index in range(number + 1):
            producer.produce("paid", key=b"%d" % number, value=b"%d" % index)
        producer.flush()
        if number % 3:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    plain = world.producer()
    plain.produce("paid", value=b"plain")
    plain.flush()
    producer.begin_transaction()
    producer.produce("paid", value=b"open")
    producer.flush()
    committed = {"kafka.isolation.level": "read_committed"}
    assert world.read(subscribe="paid") == world.consume("paid")
    rows = world.read(subscribe="paid", **committed)
    assert rows == world.consume("paid", committed=True)
    assert {row[5] for row in rows} == {None, *(b"%d" % n for n in range(12) if n % 3)}
    assert world.read(subscribe="paid", minPartitions="7", **committed) == rows
    logs = logs_of(world)
    assert read_rows({**logs, "subscribe": "paid", **committed}) == rows
    producer.abort_transaction()
    assert world.read(subscribe="paid", **committed) == world.consume("paid", committed=True)


def logs_of(world: TopicsWorld) -> dict[str, str]:
    """Return the options of a read that takes coordinates from the quorum's logs."""
    controllers = ",".join(f"{host}:{port}" for host, port in world.cluster.controllers)
    return {
        "bootstrapController": controllers,
        "store": str(world.cluster.store),
        "includeHeaders": "true",
    }


def test_coordinates_from_logs_give_the_same_rows(world: TopicsWorld) -> None:
    assert read_rows({**logs_of(world), "subscribe": "random"}) == world.consume("random")


def test_a_log_directory_an_archive_and_a_bucket_give_the_same_rows(
    world: TopicsWorld, tmp_path: Path, s3_endpoint: str
) -> None:
    expected = world.consume("random")
    directory, archive = world.cluster.log_dir(1), tmp_path / "archive"
    config = new_bucket(s3_endpoint)
    options = StoreOptions(config.endpoint_url, config.region)
    bucket = open_store(f"s3://{config.bucket}/data", options)

    def read(**source: str) -> list[Any]:
        return read_rows({"includeHeaders": "true", "subscribe": "random", **source})

    def agree() -> bool:
        """Logs are some seconds old, and the objects that they name may be merged already."""
        words = ("archive", "--log-dir", str(directory), "--out", str(archive))
        assert CliRunner().invoke(spark_commands, words).exit_code == 0
        for path in objects_in(world.cluster.store):
            bucket.write(str(path.relative_to(world.cluster.store)), path.read_bytes())
        in_bucket = {
            "store": bucket.uri,
            "endpoint": str(config.endpoint_url),
            "region": str(config.region),
        }
        assert read(archive=str(archive), **in_bucket) == expected
        assert read(logDir=str(directory), store=str(world.cluster.store)) == expected
        return True

    wait_until(agree, "the logs on disk are those of now", retry_on=(CoordinatesError, OSError))
    elsewhere = f"s3://{config.bucket}/elsewhere"
    with pytest.raises(CoordinatesError, match=f"object .* is not in {elsewhere} on"):
        read(archive=str(archive), store=elsewhere, endpoint=str(config.endpoint_url))


def test_starting_and_ending_offsets_are_those_of_sparks_kafka_source(world: TopicsWorld) -> None:
    every = world.consume("random")
    ends = [1 + max(row[2] for row in every if row[1] == index) for index in (0, 1)]

    def read(**options: str) -> list[Any]:
        return world.read(subscribe="random", **options)

    starting, ending = offsets("random", 100, -2), offsets("random", -1, 200)
    assert read(startingOffsets=starting, endingOffsets=ending) == [
        row for row in every if (row[2] >= 100 if row[1] == 0 else row[2] < 200)
    ]
    assert read(startingOffsets="earliest", endingOffsets="latest") == every
    assert read(startingOffsets=offsets("random", *ends)) == []
    with pytest.raises(OptionError, match="random-1 is missing"):
        read(startingOffsets=offsets("random", 3))
    with pytest.raises(OptionError, match="random-2 is not read"):
        read(startingOffsets=offsets("random", 50, 0, 0))
    with pytest.raises(OptionError, match="cannot begin at latest"):
        read(startingOffsets="latest")
    with pytest.raises(OptionError, match="cannot end at earliest"):
        read(endingOffsets="earliest")
    with pytest.raises(OptionError, match=r"-1 \(latest\) is no offset"):
        read(startingOffsets=offsets("random", 50, -1))


def test_offsets_by_time_begin_and_end_at_the_first_record_that_is_as_late(
    world: TopicsWorld,
) -> None:
    world.create("timed", 1)
    producer = world.producer()
    for number in range(100):
        producer.produce("timed", value=b"%d" % number, timestamp=1_000_000 + 10 * number)
    producer.flush()

    def read(**options: str) -> list[int]:
        return [row[2] for row in world.read(subscribe="timed", **options)]

    assert read(startingTimestamp="1000405", endingTimestamp="1000430") == [41, 42]
    by_partition = offsets("timed", 1_000_980)
    assert read(startingOffsetsByTimestamp=by_partition) == [98, 99]
    assert read(endingOffsetsByTimestamp=offsets("timed", 5_000_000)) == list(range(100))
    with pytest.raises(OptionError, match="no record at or after 5000000 ms"):
        read(startingTimestamp="5000000")
    assert read(startingTimestamp="5000000", startingOffsetsByTimestampStrategy="latest") == []


def test_tasks_have_at_most_so_many_offsets_and_are_at_least_so_many(world: TopicsWorld) -> None:
    _, tasks = planned(world, subscribe="random", maxRecordsPerPartition="100")
    sizes = [sum(one.end_offset - one.first_offset for one in task.pieces) for task in tasks]
    assert max(sizes) <= 100
    assert sum(sizes) == 1460
    _, tasks = planned(world, subscribe="random", minPartitions="5")
    assert len(tasks) >= 5
    _, tasks = planned(world, subscribe="random")
    assert len(tasks) == 1
    options = {"subscribe": "random", "maxRecordsPerPartition": "100"}
    assert world.read(**options) == world.consume("random")


def test_deleted_offsets_are_an_error_or_a_warning(
    world: TopicsWorld, caplog: pytest.LogCaptureFixture
) -> None:
    starting = {"subscribe": "random", "startingOffsets": offsets("random", 0, 0)}
    with pytest.raises(LostOffsetsError, match="random-0: offsets 0 to 39 were deleted"):
        world.read(**starting)
    assert world.read(**starting, failOnDataLoss="false") == world.consume("random")
    assert "random-0: offsets 0 to 39 were deleted" in caplog.text
    ending = {"subscribe": "random", "endingOffsets": offsets("random", 100_000, -1)}
    with pytest.raises(CoordinatesError, match="are not there, the partition ends at"):
        world.read(**ending)
    assert world.read(**ending, failOnDataLoss="false") == world.consume("random")


def test_objects_that_are_merged_and_deleted_after_planning_are_found_again(
    world: TopicsWorld,
) -> None:
    world.create("moving")
    world.fill("moving", seed=5, count=50)
    reader, tasks = planned(world, subscribe="moving")
    expected = world.consume("moving")
    keys = {run.object_key for task in tasks for piece in task.pieces for run in piece.runs}
    store = world.cluster.store
    wait_until(
        lambda: any(not (store / key).exists() for key in keys), "an object is merged and deleted"
    )
    rows = [row for task in tasks for batch in reader.read(task) for row in rows_of(batch)]
    assert sorted(rows, key=lambda row: row[:3]) == expected


def test_records_deleted_after_planning_are_a_stated_loss(
    world: TopicsWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.create("fading", 1)
    producer = world.producer()
    producer.produce("fading", value=b"gone")
    producer.flush()
    options = {"subscribe": "fading"}
    reader, tasks = planned(world, **options)
    lenient, _ = planned(world, **options, failOnDataLoss="false")
    world.delete_records("fading", 0, 1)
    key = tasks[0].pieces[0].runs[0].object_key
    wait_until(lambda: not (world.cluster.store / key).exists(), "the object is deleted")
    with pytest.raises(LostOffsetsError, match="fading-0: offsets 0 to 0 were deleted"):
        list(reader.read(tasks[0]))
    assert list(lenient.read(tasks[0])) == []
    assert "fading-0: offsets 0 to 0 were deleted" in caplog.text


def test_a_scan_while_its_objects_are_deleted_is_right_or_states_what_it_lost(
    world: TopicsWorld,
) -> None:
    """Brokers merge what was planned, and the log start moves on between tasks; one broker dies."""
    world.create("vanishing")
    world.fill("vanishing", seed=9, count=60)
    producer = world.producer()
    expected = world.consume("vanishing")
    options = {"subscribe": "vanishing", "maxRecordsPerPartition": "20"}
    strict, tasks = planned(world, **options)
    lenient, _ = planned(world, **options, failOnDataLoss="false")
    keys = {run.object_key for task in tasks for piece in task.pieces for run in piece.runs}
    world.delete_records("vanishing", 0, 50)
    store = world.cluster.store

    def are_merged() -> bool:
        for index in (0, 1):  # neighbours to merge with
            producer.produce("vanishing", value=b"later", partition=index)
        producer.flush()
        return sum((store / key).exists() for key in keys) < len(keys)

    wait_until(are_merged, "planned objects are merged and gone")

    def between(number: int) -> None:
        if number == len(tasks) // 2:
            world.cluster.kill(world.cluster.broker_ids[0])
            world.cluster.launch(world.cluster.broker_ids[0])
            world.cluster.wait_until_ready(world.cluster.broker_ids[0])
        if number % 4 == 0:
            delete_ahead(world, tasks[number], expected)

    right, lost = scan(world, tasks, strict, lenient, expected, between)
    assert right > 0, "no task read its rows"
    assert lost > 0, "no task stated a loss"


def delete_ahead(world: TopicsWorld, task: RecordsPartition, expected: Sequence[Row]) -> None:
    """Delete records up to some offset behind those of a task, if there is one."""
    topic, index = task.pieces[-1].partition
    end = task.pieces[-1].end_offset
    ahead = [row[2] for row in expected if row[:2] == (topic, index) and row[2] > end]
    if not ahead:
        return

    def delete() -> bool:
        world.delete_records(topic, index, ahead[min(len(ahead) - 1, 30)])
        return True

    # A broker that has just started names no leaders for a moment.
    wait_until(delete, "records are deleted", retry_on=(KafkaException,))


def scan(
    world: TopicsWorld,
    tasks: Sequence[RecordsPartition],
    strict: RecordsReader,
    lenient: RecordsReader,
    expected: Sequence[Row],
    between: Callable[[int], None],
) -> tuple[int, int]:
    """Read tasks one after the other, and check each task's rows, or the loss that it states.

    Args:    between: is called before each task, with its number.

    Returns how many tasks had all their rows, and how many stated a loss.
    """
    lost = 0
    for number, task in enumerate(tasks):
        between(number)
        (place,) = {piece.partition for piece in task.pieces}
        first, end = task.pieces[0].first_offset, task.pieces[-1].end_offset
        rows = [row for row in expected if row[:2] == place and first <= row[2] < end]
        loss: LostOffsetsError | None = None
        try:
            found = [row for batch in strict.read(task) for row in rows_of(batch)]
        except LostOffsetsError as error:
            loss = error
            found = [row for batch in lenient.read(task) for row in rows_of(batch)]
        found.sort(key=lambda row: row[:3])
        if loss is None:
            assert found == rows
        else:
            lost += 1
            assert loss.partition == place
            assert loss.log_start > first
            assert found == rows[len(rows) - len(found) :], "rows are lost from the first on"
            missing = [row[2] for row in rows[: len(rows) - len(found)]]
            assert max(missing, default=-1) < world.log_start(*place), "a row that is there is lost"
    return len(tasks) - lost, lost


def test_another_store_is_an_error_and_never_data_loss(world: TopicsWorld, tmp_path: Path) -> None:
    for store, reason in (
        (tmp_path, "is not in .* but the cluster still names it"),
        (tmp_path / "nowhere", "no such directory|still names it"),
    ):
        with pytest.raises(Exception, match=reason):
            world.read(subscribe="random", store=str(store), failOnDataLoss="false")


def test_a_flipped_byte_in_the_store_is_an_error_that_names_the_object(
    world: TopicsWorld, tmp_path: Path
) -> None:
    _, tasks = planned(world, subscribe="random")
    copy = tmp_path / "copy"
    run = tasks[0].pieces[0].runs[-1]
    for path in objects_in(world.cluster.store):
        target = copy / path.relative_to(world.cluster.store)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    data = bytearray((copy / run.object_key).read_bytes())
    data[run.byte_offset + run.size_bytes - 1] ^= 1
    (copy / run.object_key).write_bytes(data)
    damaged = EskerRecords({**world.options, "subscribe": "random", "store": str(copy)})
    with pytest.raises(Exception, match=f"random-.*{run.object_key} from byte {run.byte_offset}: "):
        list(damaged.reader(damaged.schema()).read(tasks[0]))


def test_a_broker_that_does_not_answer_is_passed_over(world: TopicsWorld) -> None:
    servers = f"127.0.0.1:1,{world.cluster.bootstrap}"
    options = {"kafka.bootstrap.servers": servers, "subscribe": "random"}
    assert world.read(**options) == world.consume("random")


def test_unknown_topics_and_brokers_are_errors_with_a_reason(world: TopicsWorld) -> None:
    with pytest.raises(CoordinatesError, match="there is no topic nothing"):
        world.read(subscribe="random,nothing")
    with pytest.raises(CoordinatesError, match="random-7: there is no such partition"):
        world.read(assign='{"random":[7]}')
    with pytest.raises(CoordinatesError, match="no broker answers"):
        world.read(
            **{"kafka.bootstrap.servers": "127.0.0.1:1", "timeoutMs": "300"}, subscribe="random"
        )
    controllers = logs_of(world)["bootstrapController"]
    with pytest.raises(CoordinatesError, match="has no random-0: is it a broker"):
        world.read(**{"kafka.bootstrap.servers": controllers}, subscribe="random")
    assert world.read(subscribePattern="nothing.*") == []


# --- streams --------------------------------------------------------------------------------------


def stream_of(world: TopicsWorld, **options: str) -> RecordsStreamReader:
    """Return a reader of a stream."""
    source = EskerRecords({**world.options, **options})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, RecordsStreamReader)
    return reader


def read_between(reader: RecordsStreamReader, start: Any, end: Any) -> list[Any]:
    """Return the rows of a micro-batch."""
    tasks: list[Any] = list(reader.partitions(start, end))
    rows = [row for task in tasks for batch in reader.read(task) for row in rows_of(batch)]
    return sorted(rows, key=lambda row: row[:3])


def test_a_stream_begins_at_the_latest_offsets_unless_told_otherwise(world: TopicsWorld) -> None:
    every = world.consume("random")
    ends = {str(row[1]): row[2] + 1 for row in every}
    assert stream_of(world, subscribe="random").initialOffset() == {"random": ends}
    earliest = stream_of(world, subscribe="random", startingOffsets="earliest").initialOffset()
    assert earliest == {"random": {"0": 40, "1": 0}}
    given = {"subscribe": "random", "startingOffsets": offsets("random", 50, -1)}
    assert stream_of(world, **given).initialOffset() == {"random": {**ends, "0": 50}}
    with pytest.raises(OptionError, match="endingOffsets: a stream has no end"):
        stream_of(world, subscribe="random", endingOffsets="latest")
    with pytest.raises(OptionError, match="maxOffsetsPerTrigger: a batch has no triggers"):
        world.read(subscribe="random", maxOffsetsPerTrigger="1")


def test_micro_batches_have_each_row_once_and_no_more_offsets_than_allowed(
    world: TopicsWorld,
) -> None:
    options = {"subscribe": "random", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "500"}
    reader = stream_of(world, **options)
    reader.prepareForTriggerAvailableNow()
    limit = reader.getDefaultReadLimit()
    offset, rows = reader.initialOffset(), []
    for _ in range(3):
        end = reader.latestOffset(offset, limit)
        batch = read_between(reader, offset, end)
        assert len(batch) <= 500
        assert read_between(stream_of(world, **options), offset, end) == batch, "planned again"
        rows += batch
        offset = end
    assert sorted(rows, key=lambda row: row[:3]) == world.consume("random")
    assert reader.latestOffset(offset, limit) == offset == reader.reportLatestOffset()


def test_a_run_that_ends_reads_only_what_was_there_when_it_began(world: TopicsWorld) -> None:
    world.create("busy")
    world.fill("busy", seed=31, count=10)
    options = {"subscribePattern": "busy.*", "startingOffsets": "earliest"}
    reader = stream_of(world, **options)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    before = world.consume("busy")
    world.fill("busy", seed=32, count=10)
    world.create("busy-later", 1)
    world.fill("busy-later", seed=33, count=5, partitions=1)
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert read_between(reader, start, end) == before
    later = stream_of(world, **options)
    last = later.latestOffset(end, later.getDefaultReadLimit())
    every = sorted(world.consume("busy") + world.consume("busy-later"), key=lambda row: row[:3])
    assert sorted(before + read_between(later, end, last), key=lambda row: row[:3]) == every


def test_a_stream_says_what_it_lost(world: TopicsWorld, caplog: pytest.LogCaptureFixture) -> None:
    every = world.consume("random")
    ends = {str(row[1]): row[2] + 1 for row in every}
    cases = (
        ({"random": {"0": 0, "1": 0}}, {"random": ends}, "offsets 0 to 39 were deleted"),
        ({"random": {"0": 99_999, "1": 0}}, {"random": ends}, "deleted and created again"),
        ({"random": ends, "gone": {"0": 5}}, {"random": ends}, "gone-0 is gone"),
        ({"random": ends, "gone": {"0": 5}}, {"random": ends, "gone": {"0": 9}}, "gone-0 is gone"),
    )
    for start, end, reason in cases:
        with pytest.raises(CoordinatesError, match=reason):
            stream_of(world, subscribe="random").partitions(start, end)
        caplog.clear()
        lenient = stream_of(world, subscribe="random", failOnDataLoss="false")
        rows = read_between(lenient, start, end)
        assert rows == [
            row for row in every if start["random"][str(row[1])] <= row[2] < ends[str(row[1])]
        ]
        assert reason in caplog.text


def test_a_limit_gives_each_partition_a_share_and_one_offset_at_least() -> None:
    a, b, c = (TopicPartition("t", index) for index in range(3))
    ends = limit_ends({a: 0, b: 5}, {a: 10_000, b: 6, c: 0}, 100)
    assert ends == {a: 99, b: 6, c: 0}
    assert limit_ends({a: 0}, {a: 100}, 100) == {a: 100}
    assert limit_ends({a: 50}, {a: 20}, 1) == {a: 20}, "a partition created again"
