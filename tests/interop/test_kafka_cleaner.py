"""The same batches, cleaned by Apache Kafka's cleaner and by ours: equal batches are left.

Two rounds: after the first one tombstones are left and marked, and the second one removes them.
What is compared is read from Kafka's segment files, so that batches and their headers count, too.

Source: docs/design/compaction.md; Kafka's Cleaner.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Final

import pytest

from records.aborted import TransactionReader
from records.batch import (
    DELETE_HORIZON,
    TRANSACTIONAL,
    Batch,
    iter_batches,
    iter_records,
    read_batch,
)
from records.batch_writer import build_batch
from records.cleaning import (
    Round,
    clean_block,
    empty_batch,
    newest_by_map,
    newest_by_offset,
    note_keys,
)
from records.compression import Compression
from records.final_runs import finish_run
from records.marker_batches import marker_batch
from records.offset_map import OffsetMap
from records.record_block import read_block
from records.uuids import encode_uuid, random_uuid
from tests.interop.kafka_rpc import Connection
from tests.interop.kafka_run import Kafka, Node, configure_node
from tests.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.slow]

TOPIC: Final = "cleaned"
TIME_MS: Final = int(time.time() * 1_000) - 3_600_000  # near the times of Kafka's markers
NOW_MS: Final = 1 << 42  # of our cleaning: after the horizons that producers send
A_DAY_MS: Final = 86_400_000
BATCHES: Final = 60
KEYS: Final = 40
_SETTINGS: Final = {
    "log.cleaner.backoff.ms": "50",
    "log.cleaner.dedupe.buffer.size": "2097152",
    "log.initial.task.delay.ms": "100",
    "offsets.topic.replication.factor": "1",
    "transaction.partition.verification.enable": "false",  # no transaction coordinator knows them
}
_CONFIGS: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.after.max.ms": "9223372036854775807",
    "segment.ms": str(A_DAY_MS),
}


class Producer:
    """Appends batches as they are, and remembers them as they stand in the log."""

    def __init__(self, broker: Connection, random: Random) -> None:
        self.batches: list[Batch] = []
        self._broker = broker
        self._random = random
        self._days = 0
        self._sequences = dict.fromkeys(range(5), 0)
        self._open: dict[int, int] = {}  # transactional producers, and their first offsets
        self.aborted: list[tuple[int, int]] = []  # producer id, first offset

    @property
    def end_offset(self) -> int:
        return self.batches[-1].header.end_offset if self.batches else 0

    def append_some(self) -> None:
        """Append a random batch: any codec, any times, tombstones; many are idempotent.

        Some have a delete horizon already, in the past: Kafka's LogValidator accepts them, too.
        """
        random = self._random
        rows = [
            (
                b"key-%d" % random.randrange(KEYS),
                random.choice((None, b"", random.randbytes(random.randrange(200)))),
                TIME_MS + random.randrange(-5_000, 5_000),
                [(f"h{i}", random.choice((None, b"x"))) for i in range(random.randrange(3))],
            )
            for _ in range(random.randint(1, 8))
        ]
        codec, producer = random.choice(tuple(Compression)), random.choice((-1, 0, 1, 2, 3, 4))
        self._append(rows, codec, producer, random.choice((0, 0, 0, DELETE_HORIZON)))
        if random.random() < 0.2:
            self.end_transactions()

    def end_transactions(self) -> None:
        """Commit or abort each open transaction; Kafka writes a marker."""
        for producer, first_offset in self._open.items():
            is_committed = self._random.random() < 0.5
            if not is_committed:
                self.aborted.append((1_000 + producer, first_offset))
            self._broker.call(
                "write_txn_markers",
                1,
                markers=[
                    {
                        "producer_id": 1_000 + producer,
                        "producer_epoch": 0,
                        "transaction_result": is_committed,
                        "topics": [{"name": TOPIC, "partition_indexes": [0]}],
                        "coordinator_epoch": 0,
                    }
                ],
            )
            control = marker_batch(
                base_offset=self.end_offset,
                timestamp=TIME_MS,
                producer_id=1_000 + producer,
                producer_epoch=0,
                outcome=int(is_committed),
                coordinator_epoch=0,
            )
            self.batches.append(read_batch(control))
        self._open.clear()

    def append_later(self) -> None:
        """Append a batch so much later than those before it that it begins a segment."""
        self._days += 2
        time = TIME_MS + self._days * A_DAY_MS
        self._append([(b"later-%d" % self._days, b"", time, ())], Compression.NONE, -1)

    def _append(self, rows, codec: Compression, producer: int, attributes: int = 0) -> None:
        idempotent, transactional = producer >= 0, producer >= 3
        if transactional:
            attributes |= TRANSACTIONAL
            self._open.setdefault(producer, self.end_offset)
        data = build_batch(
            rows,
            base_offset=0,
            leader_epoch=-1,
            compression=codec,
            attributes=attributes,
            producer_id=1_000 + producer if idempotent else -1,
            producer_epoch=0 if idempotent else -1,
            base_sequence=self._sequences[producer] if idempotent else -1,
        )
        if idempotent:
            self._sequences[producer] += len(rows)
        answer = self._broker.call(
            "produce",
            9,
            transactional_id=f"id-{producer}" if transactional else None,
            acks=-1,
            timeout=timedelta(seconds=10),
            topic_data=[{"name": TOPIC, "partition_data": [{"index": 0, "records": bytes(data)}]}],
        )
        base = answer.responses[0].partition_responses[0].base_offset
        assert base == self.end_offset
        self.batches += finish_run(
            data, base_offset=base, end_offset=base + len(rows), append_time=None
        )

    def last_sequences(self) -> dict[int, int]:
        return {1_000 + each: count - 1 for each, count in self._sequences.items() if count}


def clean(
    batches: Sequence[Batch],
    aborted: Sequence[tuple[int, int]],
    first_dirty: int,
    rules: Round,
) -> list[Batch]:
    """Clean a partition as the rewriter does: a map of the dirty part, then all batches."""
    transactions = TransactionReader(aborted, from_log_start=True)
    batches = transactions.read(batches)
    unused = transactions.unused_markers
    head = [batch for batch in batches if batch.header.base_offset < first_dirty]
    dirty = [batch for batch in batches if batch.header.base_offset >= first_dirty]
    offsets, kept = OffsetMap(), []
    block = read_block(dirty)
    note_keys(block, offsets, rules.salt)
    if head:
        older = read_block(head)
        newest = newest_by_map(older, offsets, rules.salt)
        kept += clean_block(older, newest, rules, unused).batches
    newest = newest_by_offset(block, offsets.drain_offsets())
    kept += clean_block(block, newest, rules, unused).batches
    if kept[-1].header.end_offset < dirty[-1].header.end_offset:
        kept.append(empty_batch(dirty[-1].header))
    return kept


def segments(node: Node) -> list[Path]:
    return sorted((node.directory / f"{TOPIC}-0").glob("*.log"))


def roll(node: Node, producer: Producer) -> int:
    """Have the next batch begin a segment; return its offset, up to which Kafka cleans."""
    bound = producer.end_offset
    producer.append_later()
    assert int(segments(node)[-1].stem) == bound
    return bound


def cleaned_until(node: Node) -> int:
    """Return the offset in Kafka's checkpoint of its cleaner."""
    path = node.directory / "cleaner-offset-checkpoint"
    rows = path.read_text().splitlines()[2:] if path.exists() else []
    return max((int(row.split()[2]) for row in rows if row.split()[0] == TOPIC), default=0)


def stored(node: Node, bound: int) -> Iterator[Batch]:
    for path in segments(node):
        for batch in iter_batches(path.read_bytes()):
            if batch.header.base_offset < bound:
                yield batch


def described(batches: Iterator[Batch] | Sequence[Batch]) -> list[tuple]:
    """Return the parts of batches that both cleaners must agree on, markers included."""
    return [
        (
            header.base_offset,
            header.last_offset,
            header.record_count,
            header.compression if header.record_count else None,
            bool(header.attributes & DELETE_HORIZON),
            None if header.is_control else header.max_timestamp,  # Kafka's clock wrote its markers
            (header.producer_id, header.producer_epoch, header.base_sequence),
            [
                (
                    r.offset,
                    None if header.is_control else r.timestamp,
                    bytes(r.key or b""),
                    r.value and bytes(r.value),
                    r.headers,
                )
                for r in iter_records(batch)
            ],
        )
        for batch in batches
        for header in (batch.header,)
    ]


def test_kafkas_log_cleaner_and_eskers_log_cleaner_leave_equal_batches(
    kafka: Kafka, tmp_path: Path
) -> None:
    seed = Random().getrandbits(32)
    print(f"seed {seed}")
    plan = configure_node(
        kafka, tmp_path / "node", node_id=1, dynamic_voters=False, settings=_SETTINGS
    )
    plan.format(encode_uuid(random_uuid()))
    with (
        plan.started(["PLAINTEXT"]) as node,
        Connection(node.ports["PLAINTEXT"]) as broker,
    ):
        configs = [{"name": name, "value": value} for name, value in _CONFIGS.items()]
        topic = {"name": TOPIC, "num_partitions": 1, "replication_factor": 1}
        broker.call(
            "create_topics",
            7,
            topics=[topic | {"assignments": [], "configs": configs}],
            timeout=timedelta(seconds=20),
            validate_only=False,
        )
        producer = Producer(broker, Random(seed))
        ours: list[Batch] = []
        first_dirty = taken = 0
        for number in (1, 2, 3):
            producer.aborted.clear()
            for _ in range(BATCHES):
                producer.append_some()
            producer.end_transactions()
            assert producer.aborted
            bound = roll(node, producer)
            wait_until(lambda bound=bound: cleaned_until(node) >= bound, state=node.said)
            below = [each for each in producer.batches if each.header.base_offset < bound]
            rules = Round(NOW_MS + number, 0, producer.last_sequences(), bytes(16))
            ours = clean([*ours, *below[taken:]], producer.aborted, first_dirty, rules)
            first_dirty, taken = bound, len(below)
            theirs = described(list(stored(node, bound)))
            assert described(ours) == theirs
            assert any(row[4] for row in theirs), "no tombstone was marked"
        markers = [each.header for each in producer.batches if each.header.is_control]
        left = [each.header for each in ours if each.header.is_control]
        assert len(left) < len(markers), "no marker was removed"
        assert any(header.attributes & DELETE_HORIZON for header in left), "no marker was marked"
