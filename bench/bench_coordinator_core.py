"""Where does the time of a committed batch go: deciding, encoding, applying?

    python -m bench.bench_coordinator_core [--objects N] [--partitions P] [--batches B]

One process, no network and no disk but SQLite's: a leader's decision against pending state, the
record's bytes, the overlay's change, and what every replica then does: decode, apply, SQLite.
Idempotent producers, one for each partition, append B batches to each of P partitions per object.
"""

from __future__ import annotations

import argparse
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar
from uuid import UUID

from coordinator.batch.cluster_view import StaticView
from coordinator.batch.decide import Context, decide_commit
from coordinator.batch.pending import PendingState
from coordinator.batch.settings import CoordinatorSettings
from coordinator.batch.sqlite.machine import CoordinatorMachine, Identity
from raft.interfaces import draft_values
from records.batch import iter_batches
from records.batch_writer import stamp
from records.diskless import (
    DisklessPartitionsRecord,
    LeaseGrantedRecord,
    ObjectCommitRecord,
)
from records.frame import encode_record
from records.object_keys import ObjectKeys
from records.rpc.batch_coordinator import CommitBatch, CommitBatchesRequest
from records.schema import MetadataRecord

T = TypeVar("T")

OBJECTS: Final = 2_000
PARTITIONS: Final = 50
BATCHES: Final = 4
RECORDS: Final = 10  # of a batch
BATCH_BYTES: Final = 4096
GROUP: Final = 4  # objects in one batch of the log, as with four uploaders
TOPIC: Final = UUID(int=7)
NOW_MS: Final = 1_700_000_000_000
SETTINGS: Final = CoordinatorSettings(
    keys=ObjectKeys(prefix="", cluster_id="bench", coordinator_partition=0)
)


def request_of(
    number: int, partitions: int, batches: int, sequences: list[int]
) -> CommitBatchesRequest:
    """Build the commit request of the next object, with `batches` batches of each partition."""
    groups, place = [], 0
    for partition in range(partitions):
        rows = []
        for _ in range(batches):
            first = sequences[partition]
            sequences[partition] = (first + RECORDS) & 0x7FFFFFFF
            rows.append(
                CommitBatch(
                    place, BATCH_BYTES, 0, RECORDS - 1, NOW_MS + number, 0, 1000 + partition, 0,
                    first, (first + RECORDS - 1) & 0x7FFFFFFF,
                )
            )  # fmt: skip
            place += BATCH_BYTES
        groups.append(
            CommitBatchesRequest.Topic.Partition(partition_index=partition, batches=tuple(rows))
        )
    return CommitBatchesRequest(
        broker_id=1,
        broker_epoch=1,
        lease_id=0,
        object_id=number,
        object_format=1,
        object_size=place,
        topics=(CommitBatchesRequest.Topic(topic_id=TOPIC, partitions=tuple(groups)),),
    )


def preamble(partitions: int, objects: int) -> list[MetadataRecord]:
    """Return the records of a topic and of an object lease that lasts for the whole run."""
    return [
        DisklessPartitionsRecord(
            topic_id=TOPIC,
            topic_name="bench",
            first_partition=0,
            partition_count=partitions,
            first_log_id=0,
            controller_epoch=0,
        ),
        LeaseGrantedRecord(
            lease_id=0,
            broker_id=1,
            broker_epoch=1,
            first_object_id=0,
            object_count=objects,
            granted_at_ms=NOW_MS,
            closed_lease_ids=(),
        ),
    ]


class Stopwatch:
    """Adds up the time spent in each of several steps."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}

    def run(self, name: str, work: Callable[[], T]) -> T:
        begin = time.perf_counter()
        result = work()
        self.spent[name] = self.spent.get(name, 0.0) + time.perf_counter() - begin
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=OBJECTS)
    parser.add_argument("--partitions", type=int, default=PARTITIONS)
    parser.add_argument("--batches", type=int, default=BATCHES)
    parser.add_argument("--group", type=int, default=GROUP)
    arguments = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    print(f"commit={commit} python={platform.python_version()} machine={platform.machine()}")
    with tempfile.TemporaryDirectory() as directory:
        measure(Path(directory), arguments)


def measure(directory: Path, arguments: argparse.Namespace) -> None:
    """Decide and apply the commit of each object, and print the microseconds per batch."""
    machine = CoordinatorMachine(directory, Identity("bench", bytes(16), "bench-0"))
    offset = 0
    slices: list[float] = []

    def apply_all(records: list[bytes]) -> None:
        nonlocal offset
        draft = draft_values(records, timestamp_ms=NOW_MS)
        data = bytearray(draft.parts[0])
        stamp(data, base_offset=offset, leader_epoch=1)
        begin = time.perf_counter()
        machine.apply(iter_batches(bytes(data)))
        slices.append(time.perf_counter() - begin)
        offset += len(records)

    apply_all(
        [encode_record(record) for record in preamble(arguments.partitions, arguments.objects)]
    )
    pending = PendingState(lambda: machine.store)
    context = Context(NOW_MS, NOW_MS, NOW_MS, NOW_MS, StaticView(), SETTINGS)
    sequences = [0] * arguments.partitions
    watch = Stopwatch()
    log_bytes = 0
    for first in range(0, arguments.objects, arguments.group):
        values: list[bytes] = []
        for number in range(first, min(first + arguments.group, arguments.objects)):
            request = request_of(number, arguments.partitions, arguments.batches, sequences)
            decision = watch.run(
                "decide", lambda r=request: decide_commit(r, pending, machine.store, context)
            )
            assert not decision.response.error_code, decision.response
            (record,) = decision.records
            assert isinstance(record, ObjectCommitRecord)
            assert not record.error_codes, record
            values.append(watch.run("encode", lambda r=record: encode_record(r)))
            at = offset + len(values) - 1
            watch.run("pending", lambda r=record, o=at: pending.apply(o, r))
        log_bytes += sum(map(len, values))
        watch.run("apply", lambda v=values: apply_all(v))
        pending.applied(offset)
    batches = arguments.objects * arguments.partitions * arguments.batches
    machine.flush()
    for name, seconds in watch.spent.items():
        print(f"{name:10} {seconds / batches * 1e6:6.2f} us/batch")
    leader = sum(watch.spent.values())
    print(f"leader     {leader / batches * 1e6:6.2f} us/batch = {batches / leader:,.0f} batches/s")
    print(f"follower   {batches / watch.spent['apply']:,.0f} batches/s")
    slices.sort()
    print(
        f"apply calls p50 {slices[len(slices) // 2] * 1e3:.2f} ms"
        f" p99 {slices[int(len(slices) * 0.99)] * 1e3:.2f} ms max {slices[-1] * 1e3:.2f} ms"
    )
    print(
        f"{log_bytes / batches:.1f} bytes/batch in the log, flushes={machine.store.flushes}"
        f" wal copies={machine.store.wal.copies}"
        f" rss={resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB"
    )
    machine.close()


if __name__ == "__main__":
    sys.exit(main())
