"""Measures what aborted transactions cost a consumer of committed records that catches up.

    .venv/bin/python -m bench.bench_aborted [--transactions 1000000] [--fetches 300] [--tiny]

Three quorum nodes and one broker with objects in a directory. Two partitions have the same batches
of 1 KiB, each a transaction of its own: those of one are aborted, those of the other are committed.
That is as much as consumers fetch, and a tenth more. The transactions behind it are aborted ones of
the first partition, whose objects are never read and are empty.

The cluster is restored from logs that have these commits and markers: nodes that decide a million
transactions take longer on a small machine, and end with the same state. Then a consumer with
isolation.level=read_committed fetches both partitions from their beginning, 1 MiB at a time and in
turn; the times of its requests are printed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import platform
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench.bench_defaults import DEFAULT_INTERVAL
from bench.bench_restore import NEW_ID, PATIENT, no_wait, topic_records
from coordinator.batch.transactions import ABORTED, COMMITTED
from esker.restore.run import Options, prepare, restore_cluster
from esker.settings.config import load_config
from raft.driver.config import METADATA_GROUP
from records.batch import TRANSACTIONAL
from records.batch_writer import build_batch
from records.diskless import (
    DisklessPartitionsRecord,
    LeaseGrantedRecord,
    ObjectCommitRecord,
    TransactionMarkersRecord,
)
from records.object_keys import ObjectKeys
from records.rpc.fetch import FetchRequest, FetchResponse
from records.schema import MetadataRecord
from records.wal import APPENDED, PartitionBatches, build_object
from tests.clients.cluster import EskerCluster
from tests.coordinator.batch.actors import TOPIC as TOPIC_ID
from tests.esker.restore.lost import (
    CLUSTER_ID,
    COORDINATOR,
    EPOCH,
    GROUPS,
    group_records,
    write_node,
)
from tests.raft.driver.client import Client
from tests.waiting import wait_until

WRITER: Final = 101
WRITER_EPOCH: Final = 40  # as tests.esker.restore.lost registers it
TOPIC: Final = "t"
OUTCOMES: Final = (ABORTED, COMMITTED)
"""The outcome of each partition's transactions; the partition is the index."""

IN_AN_OBJECT: Final = 1_000  # transactions of each partition, each of a producer of its own
READ: Final = bytes(950)  # the value in a batch that consumers fetch
FETCH_BYTES: Final = 1 << 20
FETCH_VERSION: Final = 12
READ_COMMITTED: Final = 1
LOADED_S: Final = 900.0  # until all nodes have loaded their checkpoints, on a busy machine
SETTINGS: Final = {**DEFAULT_INTERVAL, **PATIENT}


class Round(NamedTuple):
    """The transactions of one object: one of each producer, in some partitions."""

    number: int  # of the object, and of the producers' transaction, from 0
    is_read: bool
    partitions: range


def rounds(transactions: int, fetches: int) -> list[Round]:
    """Plan the objects: first what consumers fetch, then aborted transactions up to the number."""
    read = min(transactions, fetches * FETCH_BYTES * 11 // 10 // len(READ))
    planned = []
    for number in range(-(-transactions // IN_AN_OBJECT)):
        is_read = number * IN_AN_OBJECT < read
        planned.append(Round(number, is_read, range(len(OUTCOMES) if is_read else 1)))
    return planned


def batches_of(one: Round, now_ms: int) -> list[bytes]:
    """Build the batches that each partition gets in a round."""
    return [
        bytes(build_batch([(None, READ, now_ms, ())], base_offset=0, leader_epoch=-1,
                          attributes=TRANSACTIONAL, producer_id=producer, producer_epoch=0,
                          base_sequence=one.number))
        for producer in range(IN_AN_OBJECT)
    ]  # fmt: skip


def write_object(store: Path, one: Round, batches: Sequence[bytes]) -> None:
    """Write a round's object into the directory; an empty one if it is never read."""
    keys = ObjectKeys(prefix="", cluster_id=CLUSTER_ID, coordinator_partition=0)
    path = store / keys.key(one.number)
    path.parent.mkdir(parents=True, exist_ok=True)
    if not one.is_read:
        path.touch()
        return
    parts, _ = build_object(
        [PartitionBatches(TOPIC_ID, index, batches, len(batches)) for index in one.partitions],
        cluster_id=CLUSTER_ID, object_id=one.number, broker_id=WRITER, broker_epoch=WRITER_EPOCH,
    )  # fmt: skip
    path.write_bytes(b"".join(parts))


def coordinator_records(planned: Sequence[Round], store: Path) -> Iterator[MetadataRecord]:
    """Yield the coordinator's log, and write the objects that it names.

    Each transaction has one batch; the markers of a round follow its batches.
    """
    now_ms = time.time_ns() // 1_000_000
    yield DisklessPartitionsRecord(
        topic_id=TOPIC_ID, topic_name=TOPIC, first_partition=0, partition_count=len(OUTCOMES),
        first_log_id=0, controller_epoch=0,
    )  # fmt: skip
    yield LeaseGrantedRecord(
        lease_id=0, broker_id=WRITER, broker_epoch=WRITER_EPOCH, first_object_id=0,
        object_count=len(planned), granted_at_ms=now_ms, closed_lease_ids=(),
    )  # fmt: skip
    sizes: list[int] = []
    for one in planned:
        batches = batches_of(one, now_ms) if one.is_read else []
        sizes = [len(batch) for batch in batches] or sizes
        write_object(store, one, batches)
        yield commit_record(one, sizes, now_ms)
        yield markers_record(one, now_ms)


def commit_record(one: Round, sizes: Sequence[int], now_ms: int) -> ObjectCommitRecord:
    """Return the commit of a round's object; a round has two offsets for each transaction."""
    count, base = IN_AN_OBJECT * len(one.partitions), 2 * IN_AN_OBJECT * one.number
    each = tuple(range(IN_AN_OBJECT)) * len(one.partitions)
    places = tuple(itertools.accumulate(list(sizes) * len(one.partitions), initial=0))
    return ObjectCommitRecord(
        object_id=one.number, object_format=APPENDED, size_bytes=places[-1], broker_id=WRITER,
        broker_epoch=WRITER_EPOCH, lease_id=0, committed_at_ms=now_ms, topic_ids=(TOPIC_ID,),
        topic_indexes=(0,) * len(one.partitions), partitions=tuple(one.partitions),
        batch_counts=(IN_AN_OBJECT,) * len(one.partitions), byte_offsets=places[:-1],
        byte_sizes=tuple(sizes) * len(one.partitions),
        base_offsets=tuple(base + at for at in each), record_counts=(1,) * count,
        max_timestamps=(now_ms,) * count, timestamp_types=(0,) * count, producer_ids=each,
        producer_epochs=(0,) * count, base_sequences=(one.number,) * count, error_codes=(),
        duplicates=(), transaction_numbers=(one.number,) * count,
    )  # fmt: skip


def markers_record(one: Round, now_ms: int) -> TransactionMarkersRecord:
    """Return the markers that end a round's transactions, in the order of their producers."""
    count, base = IN_AN_OBJECT * len(one.partitions), 2 * IN_AN_OBJECT * one.number
    each = tuple(range(IN_AN_OBJECT)) * len(one.partitions)
    end = base + 2 * IN_AN_OBJECT
    return TransactionMarkersRecord(
        written_at_ms=now_ms, topic_ids=(TOPIC_ID,), topic_indexes=(0,) * count,
        partitions=tuple(index for index in one.partitions for _ in range(IN_AN_OBJECT)),
        offsets=tuple(base + IN_AN_OBJECT + at for at in each), producer_ids=each,
        producer_epochs=(0,) * count, transaction_numbers=(one.number,) * count,
        outcomes=tuple(OUTCOMES[index] for index in one.partitions for _ in range(IN_AN_OBJECT)),
        coordinator_epochs=(1,) * count, first_offsets=tuple(base + at for at in each),
        last_stable_offsets=tuple(
            base + at + 1 if at + 1 < IN_AN_OBJECT else end for at in each
        ),
    )  # fmt: skip


def write(home: Path, cluster: EskerCluster, planned: Sequence[Round]) -> None:
    """Write the logs of a lost cluster, and restore the cluster from them."""
    source = write_node(home / "lost", {
        METADATA_GROUP: [(EPOCH, record) for record in topic_records(len(OUTCOMES))],
        COORDINATOR: [(EPOCH, record) for record in coordinator_records(planned, cluster.store)],
        GROUPS: [(EPOCH, record) for record in group_records(0)],
    })  # fmt: skip
    for node in cluster.ports:
        shutil.rmtree(cluster.log_dir(node))
    nodes = tuple(load_config(cluster.properties(node)) for node in cluster.ports)
    with prepare([source], home / "scratch") as prepared:
        done = asyncio.run(
            restore_cluster(prepared, Options(cluster_id=NEW_ID, nodes=nodes), sleep=no_wait)
        )
        assert not done.missing, done.missing
    cluster.cluster_id = NEW_ID


class Reader:
    """Fetches one partition from its beginning, over a connection of its own."""

    def __init__(self, address: tuple[str, int], partition: int) -> None:
        self._wire = Client(*address, timeout_s=60)
        self._partition = partition
        self._offset = 0
        self.times_ms: list[float] = []
        self.aborted = self.bytes = 0

    def fetch(self) -> None:
        """Fetch the next MiB, and note the time until the response is there."""
        asked = FetchRequest.FetchTopic
        place = asked.FetchPartition(
            partition=self._partition, fetch_offset=self._offset, partition_max_bytes=FETCH_BYTES
        )
        request = FetchRequest(
            max_wait_ms=500, min_bytes=1, max_bytes=FETCH_BYTES, isolation_level=READ_COMMITTED,
            topics=(asked(topic=TOPIC, partitions=(place,)),),
        )  # fmt: skip
        began = time.perf_counter()
        answer = self._wire.ask(request, FetchResponse, FETCH_VERSION)
        self.times_ms.append((time.perf_counter() - began) * 1e3)
        (found,) = answer.responses[0].partitions
        assert not found.error_code, found
        assert found.records, "the partition has no more records: fewer fetches, or more of them"
        self.aborted += len(found.aborted_transactions or ())
        self.bytes += len(found.records)
        self._offset = last_offset(found.records) + 1

    def say(self, name: str) -> float:
        """Print the times of the requests; return their 99th percentile in ms."""
        times = sorted(self.times_ms)
        p99_ms = times[int(len(times) * 0.99)]
        print(f"{name}: p50 {times[len(times) // 2]:.1f} ms, p99 {p99_ms:.1f} ms; "
              f"{self.aborted:,} aborted transactions in {len(times)} responses of "
              f"{self.bytes / len(times) / 1e6:.2f} MB", flush=True)  # fmt: skip
        return p99_ms


def last_offset(records: bytes | memoryview) -> int:
    """Return the offset of the last batch, each of which has one record."""
    position = offset = 0
    while position < len(records):
        offset = int.from_bytes(records[position : position + 8], "big")
        position += 12 + int.from_bytes(records[position + 8 : position + 12], "big")
    return offset


def measure(transactions: int, fetches: int) -> None:
    """Print the times of both consumers' requests, and the ratio of the 99th percentiles."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        with EskerCluster(home / "esker", brokers=1, settings=SETTINGS) as cluster:
            cluster.store.mkdir(parents=True, exist_ok=True)
            began = time.perf_counter()
            planned = rounds(transactions, fetches)
            write(home, cluster, planned)
            print(f"{IN_AN_OBJECT * len(planned):,} transactions, written in "
                  f"{time.perf_counter() - began:.0f} s", flush=True)  # fmt: skip
            cluster.launch(*cluster.ports)
            wait_until(
                lambda: cluster.knows(WRITER) == {WRITER},
                "the broker is ready",
                deadline_s=LOADED_S,
            )
            print(f"started after {time.perf_counter() - began:.0f} s", flush=True)
            compare(cluster.brokers[0], fetches)


def compare(address: tuple[str, int], fetches: int) -> None:
    """Fetch both partitions in turn, and print the times."""
    readers = [Reader(address, partition) for partition in range(len(OUTCOMES))]
    for number in range(fetches):
        for reader in readers if number % 2 else readers[::-1]:
            reader.fetch()
    aborted, committed = (
        reader.say(name) for reader, name in zip(readers, ("aborted", "committed"), strict=True)
    )
    p50 = [statistics.median(reader.times_ms) for reader in readers]
    print(f"ratio of p50 {p50[0] / p50[1]:.2f}, of p99 {aborted / committed:.2f} (must 1.5)",
          flush=True)  # fmt: skip


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.bench_aborted", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "--transactions",
        type=int,
        default=1_000_000,
        help="aborted ones of the first partition; default: 1,000,000",
    )
    parser.add_argument("--fetches", type=int, default=300, help="of each consumer; default: 300")
    parser.add_argument("--tiny", action="store_true", help="see that it runs")
    options = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    print(f"commit={commit} python={platform.python_version()} machine={platform.machine()}")
    if options.tiny:
        measure(4_000, 3)
    else:
        measure(options.transactions, options.fetches)


if __name__ == "__main__":
    main()
