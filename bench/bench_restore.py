"""Times a restore from a broker's directory, or from a backup, to the first record produced.

    python -m bench.bench_restore [--tiny]

Without the claim's wait: reading and checking the directory, building the states, writing the
checkpoints, comparing the objects with a listing of the store, writing the directories of three
voters and a broker; then these four processes are started, and a record is produced. The lost
coordinator's log has one commit for each object, of a batch in each of a thousand partitions, and
no checkpoint: the slowest copy to read. The backup is one cut of the same logs, in a directory.
Beside it the floor, the bytes of that log read and their checksums computed. CPU seconds are of
this process and the four nodes together.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from confluent_kafka import Producer

from esker.restore.backups import BackupSource
from esker.restore.run import Options, prepare, restore_cluster
from esker.settings.config import NodeSettings, load_config
from raft.driver.config import METADATA_GROUP
from raft.segments.files import Mode, RealFileSystem
from records.batch import iter_batches
from records.diskless import DisklessPartitionsRecord, LeaseGrantedRecord, ObjectCommitRecord
from records.metadata import PartitionRecord, TopicRecord
from records.object_keys import ObjectKeys
from records.schema import MetadataRecord
from tests.clients.cluster import EskerCluster
from tests.coordinator.batch.actors import TOPIC
from tests.esker.restore.backing_up import back_up
from tests.esker.restore.lost import (
    CLUSTER_ID,
    COORDINATOR,
    EPOCH,
    GROUPS,
    Logs,
    cluster_records,
    group_records,
    write_node,
)
from tests.waiting import wait_until

RUNS, PARTITIONS = 1_000_000, 10_000
TINY_RUNS, TINY_PARTITIONS = 2_000, 20
BATCHES: Final = 1_000  # of an object
LEASE_IDS: Final = 10_000
BATCH_BYTES: Final = 1_000
FLUSH_S: Final = 300.0
READY_S: Final = 600.0  # a busy machine is measured, too
PATIENT: Final = {
    "controller.quorum.election.timeout.ms": "1000",
    "controller.quorum.fetch.timeout.ms": "2000",
    "initial.broker.registration.timeout.ms": "600000",
}
"""The defaults of elections; a broker that waits longer than 60 s is measured, too."""
NEW_ID: Final = "BBBBBBBBBBBBBBBBBBBBBQ"


def topic_records(partitions: int) -> Iterator[MetadataRecord]:
    yield from cluster_records(has_topic=False)
    yield TopicRecord(name="t", topic_id=TOPIC)
    for index in range(partitions):
        yield PartitionRecord(
            partition_id=index,
            topic_id=TOPIC,
            replicas=(101,),
            isr=(101,),
            removing_replicas=(),
            adding_replicas=(),
            leader=101,
            leader_epoch=0,
            partition_epoch=0,
        )


def commit_records(runs: int, partitions: int) -> Iterator[MetadataRecord]:
    yield DisklessPartitionsRecord(
        topic_id=TOPIC,
        topic_name="t",
        first_partition=0,
        partition_count=partitions,
        first_log_id=0,
        controller_epoch=0,
    )
    batches, ends = min(BATCHES, partitions), [0] * partitions
    next_partition = 0
    for object_id in range(runs // batches):
        if object_id % LEASE_IDS == 0:
            yield LeaseGrantedRecord(
                lease_id=object_id // LEASE_IDS,
                broker_id=101,
                broker_epoch=40,
                first_object_id=object_id,
                object_count=LEASE_IDS,
                granted_at_ms=1,
                closed_lease_ids=(),
            )
        places = tuple((next_partition + index) % partitions for index in range(batches))
        next_partition = (next_partition + batches) % partitions
        yield ObjectCommitRecord(
            object_id=object_id,
            object_format=1,
            size_bytes=batches * BATCH_BYTES,
            broker_id=101,
            broker_epoch=40,
            lease_id=object_id // LEASE_IDS,
            committed_at_ms=1,
            topic_ids=(TOPIC,),
            topic_indexes=(0,) * batches,
            partitions=places,
            batch_counts=(1,) * batches,
            byte_offsets=tuple(range(0, batches * BATCH_BYTES, BATCH_BYTES)),
            byte_sizes=(BATCH_BYTES,) * batches,
            base_offsets=tuple(ends[place] for place in places),
            record_counts=(1,) * batches,
            max_timestamps=(1,) * batches,
            timestamp_types=(0,) * batches,
            producer_ids=(-1,) * batches,
            producer_epochs=(-1,) * batches,
            base_sequences=(-1,) * batches,
            error_codes=(),
            duplicates=(),
        )
        for place in places:
            ends[place] += 1


def read_floor(directory: Path) -> float:
    """Seconds to read a log and compute the checksums of its batches."""
    files, began = RealFileSystem(), time.perf_counter()
    for path in sorted(directory.glob("*.log")):
        file = files.open(path, Mode.READ)
        for _ in islice(iter_batches(file.read(0, file.size())), None):
            pass
        file.close()
    return time.perf_counter() - began


def write_objects(store: Path, count: int) -> None:
    """Write an empty object for each one that the log names."""
    keys = ObjectKeys(prefix="", cluster_id=CLUSTER_ID, coordinator_partition=0)
    for object_id in range(count):
        path = store / keys.key(object_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def measure(home: Path, runs: int, partitions: int) -> None:
    logs: Logs = {
        METADATA_GROUP: [(EPOCH, one) for one in topic_records(partitions)],
        COORDINATOR: [(EPOCH, one) for one in commit_records(runs, partitions)],
        GROUPS: [(EPOCH, one) for one in group_records(0)],
    }
    source, store = write_node(home / "101", logs), home / "store"
    store.mkdir()
    back_up(home, logs)
    write_objects(store, runs // min(BATCHES, partitions))
    del logs
    floor_s = read_floor(source / COORDINATOR.name)
    for name in ("directory", "backup"):
        with EskerCluster(
            home / f"from-{name}", brokers=1, store=store, settings=PATIENT
        ) as cluster:
            for node in cluster.ports:
                shutil.rmtree(cluster.log_dir(node))
            nodes = [load_config(cluster.properties(node)) for node in cluster.ports]
            backup = BackupSource(settings=nodes[-1]) if name == "backup" else None
            began_cpu_s = cpu_s()
            times = restore(cluster, nodes, [] if backup else [source], backup)
        shutil.rmtree(store / "lineage")  # the next restore claims the same timeline
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{runs:>9,} runs, {partitions:>6,} partitions, from a {name}: checkpoints "
            f"{times[0]:.1f} s, directories {times[1]:.1f} s, first record {times[2]:.1f} s; "
            f"{cpu_s() - began_cpu_s:.1f} s of CPU; the log's bytes alone {floor_s:.2f} s, ratio "
            f"{times[1] / floor_s:.0f}; at most {grown:.0f} MB"
        )


def cpu_s() -> float:
    """Return the CPU seconds of this process and of the processes that it has waited for."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def restore(
    cluster: EskerCluster,
    nodes: Sequence[NodeSettings],
    sources: Sequence[Path],
    backup: BackupSource | None,
) -> tuple[float, float, float]:
    """Seconds until the checkpoints are written, the directories are, and a record is produced."""
    options = Options(cluster_id=NEW_ID, nodes=tuple(nodes))
    began = time.perf_counter()
    with prepare(sources, cluster.home / "scratch", backup=backup) as prepared:
        prepared_s = time.perf_counter() - began
        done = asyncio.run(restore_cluster(prepared, options, sleep=no_wait))
        assert not done.missing
    written_s = time.perf_counter() - began
    cluster.cluster_id = NEW_ID
    cluster.launch(*cluster.ports)
    (broker,) = cluster.broker_ids
    wait_until(lambda: cluster.knows(broker), "the broker serves", deadline_s=READY_S)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    producer.produce("t", b"first", partition=0)
    assert producer.flush(FLUSH_S) == 0
    return prepared_s, written_s, time.perf_counter() - began


async def no_wait(_: float) -> None:
    """Stand in for the wait after the claim."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="small sizes, for tests")
    tiny = parser.parse_args().tiny
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    print(f"commit {commit}, Python {platform.python_version()}, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory(dir=".") as home:
        sizes = (TINY_RUNS, TINY_PARTITIONS) if tiny else (RUNS, PARTITIONS)
        measure(Path(home).absolute(), *sizes)


if __name__ == "__main__":
    main()
