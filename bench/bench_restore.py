"""Times a restore from a broker's directory, or from a backup, to three voters' directories.

    python -m bench.bench_restore [--tiny]

In one process, without the claim's wait and without a store: reading and checking the directory,
building the states, writing the checkpoints, and the new directories. The lost coordinator's log
has one commit for each object, of a batch in each of a thousand partitions, and no checkpoint: the
slowest copy to read. The backup is one cut of the same logs, in a directory. Beside it the floor,
the bytes of that log read and their checksums computed.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import subprocess
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from esker.restore.backups import BackupSource
from esker.restore.directories import write_directory
from esker.restore.run import prepare
from esker.settings.config import parse_config
from raft.driver.config import METADATA_GROUP
from raft.segments.files import Mode, RealFileSystem
from records.batch import iter_batches
from records.diskless import DisklessPartitionsRecord, LeaseGrantedRecord, ObjectCommitRecord
from records.metadata import PartitionRecord, TopicRecord
from records.schema import MetadataRecord
from tests.coordinator.batch.actors import TOPIC
from tests.esker.restore.backing_up import back_up
from tests.esker.restore.lost import (
    COORDINATOR,
    EPOCH,
    GROUPS,
    Logs,
    cluster_records,
    group_records,
    write_node,
)

RUNS, PARTITIONS = 1_000_000, 10_000
TINY_RUNS, TINY_PARTITIONS = 2_000, 20
BATCHES: Final = 1_000  # of an object
LEASE_IDS: Final = 10_000
BATCH_BYTES: Final = 1_000
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


def voter(home: Path, node: int) -> dict[str, str]:
    return {
        "process.roles": "controller",
        "node.id": str(node),
        "controller.quorum.voters": "1@127.0.0.1:9091,2@127.0.0.1:9092,3@127.0.0.1:9093",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"CONTROLLER://127.0.0.1:909{node}",
        "log.dirs": str(home / str(node)),
    }


def read_floor(directory: Path) -> float:
    """Seconds to read a log and compute the checksums of its batches."""
    files, began = RealFileSystem(), time.perf_counter()
    for path in sorted(directory.glob("*.log")):
        file = files.open(path, Mode.READ)
        for _ in islice(iter_batches(file.read(0, file.size())), None):
            pass
        file.close()
    return time.perf_counter() - began


def measure(home: Path, runs: int, partitions: int) -> None:
    logs: Logs = {
        METADATA_GROUP: [(EPOCH, one) for one in topic_records(partitions)],
        COORDINATOR: [(EPOCH, one) for one in commit_records(runs, partitions)],
        GROUPS: [(EPOCH, one) for one in group_records(0)],
    }
    source = write_node(home / "101", logs)
    (home / "store").mkdir()
    back_up(home, logs)
    del logs
    floor_s = read_floor(source / COORDINATOR.name)
    broker = voter(home, 4) | {
        "process.roles": "broker",
        "listeners": "PLAINTEXT://127.0.0.1:9101",
        "esker.storage.directory.path": str(home / "store"),
    }
    backup = BackupSource(settings=parse_config(broker))
    for name, sources, cut in (("directory", [source], None), ("backup", [], backup)):
        prepared_s, whole_s = restore(home / f"from-{name}", sources, cut, partitions)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{runs:>9,} runs, {partitions:>6,} partitions, from a {name}: checkpoints "
            f"{prepared_s:.1f} s, three directories after {whole_s:.1f} s; the log's bytes alone "
            f"{floor_s:.2f} s, ratio {whole_s / floor_s:.0f}; at most {grown:.0f} MB"
        )


def restore(
    home: Path, sources: list[Path], backup: BackupSource | None, partitions: int
) -> tuple[float, float]:
    """Seconds until the checkpoints are written, and until the directories are."""
    home.mkdir()
    files, began = RealFileSystem(), time.perf_counter()
    with prepare(sources, home / "scratch", backup=backup) as prepared:
        prepared_s = time.perf_counter() - began
        assert prepared.restored.partitions == partitions
        for node in (1, 2, 3):
            settings = parse_config(voter(home, node))
            write_directory(files, settings, NEW_ID, prepared.restored.checkpoints)
    return prepared_s, time.perf_counter() - began


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
