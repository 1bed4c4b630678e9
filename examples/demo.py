"""What Esker does, shown on real input: `make demo`.

`esker dev` starts a cluster. librdkafka, which does not know what it talks to, writes the sources
of Python's standard library into it, line by line, while the quorum's leaders are killed; a group
of two consumers reads them back; every line is compared. Then the cluster is asked what it knows,
and each object in its store is verified. Spark plans a retention sweep from the log, which is
applied; files go, everything is audited (`examples.demo_pipeline`). The topic becomes an Iceberg
table, which DuckDB and Spark ask (`examples.demo_tables`). Last, and shortly: a metadata log that
Apache Kafka wrote is decoded and encoded again to the same bytes.

Every ticked line was checked just before it was printed. If one did not hold, the demo would end
there, with exit code 1.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from collections import Counter
from pathlib import Path

from esker.dump.batches import read_batches_file
from esker.dump.items import RecordItem
from esker.dump.kinds import Kind
from examples.demo_clients import Lines, Reading, real_lines, same_lines, write
from examples.demo_cluster import CLUSTER_LOG, COORDINATOR_LOG, Cluster, DemoFailedError
from examples.demo_pipeline import sow, sweep
from examples.demo_saying import claim, command, failed, heading, quiet
from examples.demo_tables import keep_as_table
from raft.segments.files import RealFileSystem
from records.batch import Batch, iter_batches, iter_records
from records.batch_writer import build_batch
from records.errors import RecordError
from records.frame import (
    decode_control_record,
    decode_record,
    encode_control_record,
    encode_record,
    read_frame,
)

DIRECTORY = Path(__file__).parents[1] / "tests" / "data" / "kafka"
"""What nodes of Kafka wrote; kept for tests, too."""
DYNAMIC, METADATA = "dynamic-voters", "__cluster_metadata-0"
TOPIC = "python"
PARTITIONS = 4
GROUP = "readers"


def start(cluster: Cluster) -> None:
    """Start the demo's cluster with `esker dev`, and create the demo's topic."""
    command(f"esker dev --brokers {len(cluster.brokers)}")
    quiet("\n".join(cluster.start()))
    command(f"esker topics create {TOPIC} --partitions {PARTITIONS}")
    quiet(cluster.run("topics", "create", "--topic", TOPIC, "--partitions", str(PARTITIONS)))


def produce(cluster: Cluster, lines: Lines) -> None:
    """Write all lines to the topic; half-way, kill the leader of the batch coordinator's log."""
    killed: list[tuple[str, int]] = []
    written = write(
        cluster.bootstrap,
        TOPIC,
        lines,
        half_way=lambda: killed.append(cluster.kill(COORDINATOR_LOG)),
    )
    if written.failures:
        raise DemoFailedError(f"all is written and killed as told: {written.failures[0]}")
    claim(
        f"{written.acknowledged:,} lines of Python's own sources written through librdkafka in "
        f"{written.seconds:.1f} s",
        holds=written.acknowledged == sum(map(len, lines.values())),
    )
    claim(
        f"half-way {killed[0][0]}, which led the log of batches, was killed: a gap of "
        f"{written.longest_gap_s:.1f} s",
        holds=cluster.epoch(COORDINATOR_LOG) > killed[0][1],
    )


def consume(cluster: Cluster, lines: Lines) -> None:
    """Read all lines with two consumers of one group; meanwhile, kill the active controller."""
    cluster.wait_until_whole()
    expected = sum(map(len, lines.values()))
    reading = Reading(cluster.bootstrap, TOPIC, GROUP, members=2, partitions=PARTITIONS)
    with reading:
        reading.until(expected // 3)
        killed, epoch = cluster.kill(CLUSTER_LOG)
        found = reading.until(expected)
        shares = [len(partitions) for partitions in reading.shares()]
    claim(
        f"{killed}, the active controller, was killed while that was read back",
        holds=cluster.epoch(CLUSTER_LOG) > epoch,
    )
    claim(
        f"two consumers of one group, {shares[0]} and {shares[1]} partitions, read "
        f"{len(found):,} lines in {reading.seconds:.1f} s",
        holds=len(found) == expected and min(shares) > 0,
    )
    claim("they are the lines that were written, in order, none missing, none twice",
          holds=same_lines(lines, found))  # fmt: skip


def describe(cluster: Cluster) -> None:
    """Print the cluster's consumer group, quorum and topic, and verify all stored objects."""
    cluster.wait_until_whole()
    for words in (
        ("groups", "describe", "--group", GROUP),
        ("quorum", "describe"),
        ("diskless", "describe", TOPIC),
    ):
        command("esker " + " ".join(words))
        quiet(cluster.run(*words))
    objects = cluster.objects()
    command("ls -R esker-data/objects")
    for path in objects[:2]:
        quiet(f"{path.stat().st_size:>9,}  {path.relative_to(cluster.directory / 'objects')}")
    quiet(f"... {len(objects)} objects, {sum(p.stat().st_size for p in objects):,} bytes")
    names = [str(path) for path in objects]
    sound = cluster.run("dump-log", "--verify", *names).splitlines()
    claim(
        f"esker dump-log --verify: all {len(sound)} objects are sound",
        holds=len(sound) == len(objects) > 0 and all(line.startswith("sound") for line in sound),
    )


# --- a metadata log of Apache Kafka -------------------------------------------------------------


def kafka_log() -> None:
    """Decode a metadata log that Apache Kafka wrote, and check that it encodes to equal bytes."""
    directory = DIRECTORY / DYNAMIC / METADATA
    logs, checkpoints = sorted(directory.glob("*.log")), sorted(directory.glob("*.checkpoint"))
    kinds: Counter[str] = Counter()
    opaque = 0
    for path in logs:
        for item in read_batches_file(RealFileSystem(), path, Kind.SEGMENT):
            if isinstance(item, RecordItem):
                opaque += item.message is None
                kinds[type(item.message).__name__] += 1
    claim(
        f"{kinds.total()} records of {len(kinds)} types in {len(logs)} segments: "
        "none is unknown, none malformed",
        holds=opaque == 0 and kinds.total() > 0,
    )
    files = logs + checkpoints
    same = sum(rebuilt(path) == path.read_bytes() for path in files)
    claim(
        f"{len(files)} files (segments, checkpoints) built anew from those: Kafka's, byte for byte",
        holds=same == len(files) > 0,
    )


def rebuilt(path: Path) -> bytes:
    """Decode the records of a Kafka log file, and return the bytes that they encode to."""
    data = bytearray()
    for batch in iter_batches(path.read_bytes()):
        originals = list(iter_records(batch))
        data += build_batch(
            [(*pair, o.timestamp, ()) for pair, o in zip(encoded(batch), originals, strict=True)],
            base_offset=batch.header.base_offset,
            leader_epoch=batch.header.leader_epoch,
            attributes=batch.header.attributes,
        )
    return bytes(data)


def encoded(batch: Batch) -> list[tuple[bytes | None, bytes]]:
    """Decode a batch's metadata records, and return their keys and values encoded again."""
    pairs: list[tuple[bytes | None, bytes]] = []
    for record in iter_records(batch):
        if batch.header.is_control:
            control = decode_control_record(record.key, record.value)
            pairs.append(encode_control_record(control, getattr(control, "version", 0)))
        else:
            version = read_frame(record.value)[1]
            pairs.append((None, encode_record(decode_record(record.value), version)))
    return pairs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--lines", type=int, default=100_000, help="how many, at most")
    arguments = parser.parse_args()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # not every locale has a tick
    lines = real_lines(arguments.lines)
    try:
        with tempfile.TemporaryDirectory(prefix="esker-demo-") as name, Cluster(Path(name)) as it:
            heading("A cluster on this machine")
            start(it)
            heading("Records, while leaders die")
            produce(it, lines)
            consume(it, lines)
            heading("What it says of itself")
            describe(it)
            heading("Retention from outside: Spark plans it from the log")
            sweep(it, sow(it, lines))
            heading("A topic as an Iceberg table")
            keep_as_table(it, TOPIC, lines)
        heading("A metadata log that Apache Kafka 4.3.1 wrote")
        kafka_log()
    except (DemoFailedError, RecordError) as error:
        failed(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
