"""An object with one batch of each partition has a short way of its own: with the same result.

Columns of zeros where a record has none of errors and duplicates say the same, and take the long
way. Prints the seed of each world; `WORLDS` seeds are tried.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from uuid import UUID

import msgspec
import pytest

from coordinator.batch.applying import apply_record
from coordinator.batch.pending import PendingState
from coordinator.batch.runs import runs_of
from coordinator.batch.state import NO_LOG, Broker, Counters, Lease, Topic, log_ids_of
from coordinator.batch.transactions import OpenTransactions
from records.diskless import ObjectCommitRecord
from tests.examples import seeds

WORLDS = 25
TOPICS = (UUID(int=1), UUID(int=2))
PARTITIONS = 6


class World:
    """Tables in memory: two topics, one lease."""

    def __init__(self) -> None:
        count = len(TOPICS) * PARTITIONS
        ids = [tuple(range(i * PARTITIONS, (i + 1) * PARTITIONS)) for i in range(len(TOPICS))]
        self.topics = {topic: Topic(str(topic), ids[i]) for i, topic in enumerate(TOPICS)}
        self.logs = dict.fromkeys(range(count), (0, 0))
        self.producers: dict[tuple[int, int], tuple[int, int, tuple[tuple[int, ...], ...]]] = {}
        self.leases = {0: Lease(1, 1, 0, 1_000, -1, (), (), 0)}
        self.brokers = {1: Broker(1, (0,), ())}
        self.answers: dict[int, object] = {}
        self.cleanings: dict[int, object] = {}
        self.open_transactions: dict[int, OpenTransactions] = {}
        self.replacing: dict[tuple[int, int], int] = {}
        self.counters = Counters()


def commits(rng: random.Random) -> list[ObjectCommitRecord]:
    """Forty objects of idempotent producers, of changing epochs, and of none."""
    ends: dict[tuple[int, int], int] = {}
    made = []
    for object_id in range(40):
        chosen = rng.sample(range(len(TOPICS)), rng.randint(1, len(TOPICS)))
        groups = [
            (index, partition)
            for index, _ in enumerate(chosen)
            for partition in rng.sample(range(PARTITIONS), rng.randint(1, PARTITIONS))
        ]
        counts = [rng.randint(1, 9) for _ in groups]
        bases = []
        for (index, partition), count in zip(groups, counts, strict=True):
            at = (chosen[index], partition)
            bases.append(ends.get(at, 0))
            ends[at] = bases[-1] + count
        producers = [rng.choice((-1, 5, 6)) for _ in groups]
        size = len(groups)
        made.append(
            ObjectCommitRecord(
                object_id=object_id, object_format=1, size_bytes=100 * size, broker_id=1,
                broker_epoch=1, lease_id=0, committed_at_ms=1_000 + object_id,
                topic_ids=tuple(TOPICS[i] for i in chosen),
                topic_indexes=tuple(index for index, _ in groups),
                partitions=tuple(partition for _, partition in groups),
                batch_counts=(1,) * size,
                byte_offsets=tuple(range(0, 100 * size, 100)), byte_sizes=(100,) * size,
                base_offsets=tuple(bases), record_counts=tuple(counts),
                max_timestamps=tuple(rng.randint(0, 999) for _ in groups),
                timestamp_types=tuple(rng.randint(0, 1) for _ in groups),
                producer_ids=tuple(producers),
                producer_epochs=tuple(
                    -1 if one < 0 else rng.choice((0, 0, 0, object_id // 8)) for one in producers
                ),
                base_sequences=tuple(
                    -1 if one < 0 else rng.choice((7, 2**31 - 3)) for one in producers
                ),
                error_codes=(), duplicates=(),
            )
        )  # fmt: skip
    return made


def by_the_long_way(record: ObjectCommitRecord) -> ObjectCommitRecord:
    zeros = (0,) * len(record.base_offsets)
    return msgspec.structs.replace(record, error_codes=zeros, duplicates=zeros)


def state_of(tables: World) -> Sequence[object]:
    return (tables.logs, tables.producers, tables.leases, tables.brokers, set(tables.answers))


@pytest.mark.parametrize("seed", seeds(WORLDS))
def test_the_fast_path_for_commits_of_single_batches_changes_the_state_like_the_general_path(
    seed: int,
) -> None:
    print(f"seed {seed}")
    short, long, behind = World(), World(), World()
    pending = PendingState(lambda: behind)  # type: ignore[arg-type]
    rng = random.Random(seed)
    for offset, record in enumerate(commits(rng)):
        log_ids = log_ids_of(short, record)  # type: ignore[arg-type]
        assert log_ids == log_ids_of(pending, record)
        assert NO_LOG not in log_ids
        assert runs_of(record, log_ids) == runs_of(by_the_long_way(record), log_ids)
        apply_record(short, record)  # type: ignore[arg-type]
        apply_record(long, by_the_long_way(record))  # type: ignore[arg-type]
        pending.apply(offset, record)
        assert state_of(short) == state_of(long)
        for table in ("logs", "producers", "leases", "brokers"):
            for key, value in getattr(short, table).items():
                assert getattr(pending, table).get(key) == value, f"pending {table} {key}"
        if rng.random() < 0.3:
            behind.__dict__.update(World().__dict__)
            for one in commits(random.Random(seed))[: offset + 1]:
                apply_record(behind, one)  # type: ignore[arg-type]
            pending.drop()


def test_applying_a_commit_record_with_an_unexpected_offset_fails_an_assertion() -> None:
    tables = World()
    (record, *_) = commits(random.Random(1))
    wrong = msgspec.structs.replace(
        record, base_offsets=(*record.base_offsets[:-1], record.base_offsets[-1] + 1)
    )
    with pytest.raises(AssertionError, match="at end 0"):
        apply_record(tables, wrong)  # type: ignore[arg-type]
    assert not tables.producers
    assert set(tables.logs.values()) == {(0, 0)}
