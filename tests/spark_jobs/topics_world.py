"""A real cluster with topics of every kind, and their rows as librdkafka's consumer reads them."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from spark_jobs.topics.records_source import EskerRecords
from tests.clients.cluster import EskerCluster
from tests.waiting import DEADLINE_S

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
SETTINGS: Final = {
    "diskless.file.delete.delay.ms": "2000",
    "esker.file.delete.interval.ms": "200",
    "esker.compaction.interval.ms": "500",
    "esker.compaction.min.age.ms": "1",
    "esker.compaction.max.wait.ms": "1",
    "esker.compaction.min.saved.runs": "2",
}
"""Objects are merged within a second, and what they replace is gone two seconds later."""

Row = tuple[Any, ...]
"""Topic, partition, offset, timestamp in ms, its type, key, value, headers."""


class TopicsWorld:
    """A cluster of one controller and one broker."""

    def __init__(self, cluster: EskerCluster) -> None:
        self.cluster = cluster
        self.admin = AdminClient({"bootstrap.servers": cluster.bootstrap})

    @property
    def options(self) -> dict[str, str]:
        """The options of a read but for its topics."""
        return {
            "kafka.bootstrap.servers": self.cluster.bootstrap,
            "store": str(self.cluster.store),
            "includeHeaders": "true",
        }

    def create(self, topic: str, partitions: int = 2, **config: str) -> None:
        """Create a topic."""
        named = {name.replace("_", "."): value for name, value in config.items()}
        self.admin.create_topics([NewTopic(topic, partitions, config=named)])[topic].result()

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Delete the records below an offset."""
        place = TopicPartition(topic, partition, before)
        self.admin.delete_records([place])[place].result()

    def log_start(self, topic: str, partition: int) -> int:
        """Return the first offset that is not deleted."""
        place = TopicPartition(topic, partition)
        found = self.admin.list_offsets({place: OffsetSpec.earliest()})[place].result()
        return int(found.offset)

    def producer(self, codec: str = "none", **config: Any) -> Producer:
        """Return a producer whose batches are small."""
        return Producer(
            {
                "bootstrap.servers": self.cluster.bootstrap,
                "compression.type": codec,
                "batch.num.messages": 50,
                "linger.ms": 5,
                **config,
            }
        )

    def fill(self, topic: str, seed: int, count: int = 300, partitions: int = 2) -> None:
        """Write random records with each codec."""
        random_ = random.Random(seed)
        for codec in CODECS:
            producer = self.producer(codec)
            for number in range(count):
                producer.produce(topic, **random_record(random_, number, partitions))
            producer.flush()

    def consume(self, topic: str, *, committed: bool = False) -> list[Row]:
        """Return a topic's rows, in order, as librdkafka's consumer reads them."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.cluster.bootstrap,
                "group.id": "judge",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "check.crcs": True,
            }
        )
        try:
            partitions = consumer.list_topics(topic).topics[topic].partitions
            left = set(partitions)
            consumer.assign([TopicPartition(topic, one, 0) for one in partitions])
            rows = []
            while left:
                message = consumer.poll(DEADLINE_S)
                assert message is not None, f"{topic}: {left} have no end"
                error = message.error()
                if error is None:
                    kind, timestamp = message.timestamp()
                    rows.append(
                        (
                            topic,
                            message.partition(),
                            message.offset(),
                            timestamp,
                            kind - 1,  # librdkafka's 1 is create time
                            message.key(),
                            message.value(),
                            message.headers(),
                        )
                    )
                elif error.code() == -191:  # the end of a partition
                    left.discard(message.partition())
                else:
                    raise KafkaException(error)
        finally:
            consumer.close()
        return sorted(rows, key=lambda row: row[:3])

    def read(self, **options: str) -> list[Row]:
        """Return the rows of `esker_records`, planned here and read as by tasks."""
        return read_rows({**self.options, **options})


def objects_in(store: Path) -> list[Path]:
    """Return the objects of batches: neither temporary files nor the probes of idle brokers."""
    return [
        path
        for path in store.rglob("*")
        if path.is_file()
        and not path.name.startswith(".")
        and not path.is_relative_to(store / "probe")
    ]


def random_record(random_: random.Random, number: int, partitions: int) -> dict[str, Any]:
    """Return the arguments of a produce call."""
    size = random_.choice((0, 1, 20, 20, 300))
    headers = random_.choice((None, None, [("a", b"1")], [("b", None), ("b", b""), ("ü", b"x")]))
    record: dict[str, Any] = {
        "key": random_.choice((None, b"", b"k%d" % random_.randrange(40))),
        "value": random_.choice((None, random_.randbytes(size), b"v" * size)),
        "partition": random_.randrange(partitions),
    }
    if headers is not None:
        record["headers"] = headers
    if random_.random() < 0.3:
        record["timestamp"] = 1_700_000_000_000 + random_.randrange(10**9) + number
    return record


def read_rows(options: Mapping[str, str]) -> list[Row]:
    """Return the rows of a read that is planned here and read as tasks do."""
    source = EskerRecords(dict(options))
    reader = source.reader(source.schema())
    rows: list[Row] = []
    for partition in reader.partitions():
        task, share = pickle.loads(pickle.dumps((reader, partition)))
        for batch in task.read(share):
            rows += rows_of(batch)
    return sorted(rows, key=lambda row: row[:3])


def rows_of(batch: Any) -> Iterator[Row]:
    """Yield the rows of an Arrow batch of all columns."""
    times = batch.column("timestamp").cast("int64").to_pylist()
    for row, time in zip(batch.drop_columns(["timestamp"]).to_pylist(), times, strict=True):
        headers = row["headers"]
        yield (
            row["topic"],
            row["partition"],
            row["offset"],
            time // 1000,
            row["timestampType"],
            row["key"],
            row["value"],
            None if headers is None else [(one["key"], one["value"]) for one in headers],
        )


def offsets(topic: str, *values: int) -> str:
    """Return offsets of a topic's partitions, as options have them."""
    return json.dumps({topic: {str(index): value for index, value in enumerate(values)}})
