"""What works so far, shown on real input: `make demo`.

A log that Apache Kafka wrote is decoded, and encoded again to the same bytes; a checkpoint is
written, verified, damaged, and the damage found; a quorum of three processes commits real text
while its leader is killed. Where Java, mvn and Maven Central are at hand, a real Kafka writes the
log now and reads our checkpoint back; else the recorded log serves (tests/data/kafka), and the
first lines say so.

Every ticked line was checked just before it was printed. If one did not hold, the demo would end
there, with exit code 1.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from esker.dump.batches import read_batches_file
from esker.dump.human import HumanPrinter
from esker.dump.items import RecordItem
from esker.dump.kinds import Kind
from examples.demo_quorum import (
    NODES,
    Quorum,
    QuorumFailedError,
    commit,
    in_order,
    read_back,
    real_lines,
    wait_until_equal,
)
from raft.segments.files import RealFileSystem
from records.batch import Batch, iter_records
from records.batch_writer import build_batch
from records.errors import RecordError
from records.frame import encode_control_record, encode_record
from records.schema import ControlRecord
from snapshot import CheckpointReader, CheckpointWriter, DamagedFileError, Origin, verify_checkpoint
from snapshot.names import parse_checkpoint_name
from tests.interop.dump_output import dump
from tests.interop.kafka_release import VERSION, KafkaMissingError, KafkaSetupError, fetch
from tests.interop.kafka_run import Kafka, ToolFailedError
from tests.interop.kafka_scenario import write_log
from tests.interop.reading import batches, decode
from tests.interop.recording import DIRECTORY, DYNAMIC, METADATA

WIDTH = 98
SHOWN = ("TopicRecord", "PartitionRecord", "ConfigRecord")
FILES = RealFileSystem()
OUT = Console(width=WIDTH, highlight=False, soft_wrap=True)


class DemoFailedError(Exception):
    """Something that the demo was about to claim is not so."""


def claim(text: str, *, holds: bool) -> None:
    """State something, if it holds."""
    if not holds:
        raise DemoFailedError(text)
    OUT.print(f"  [green]✓[/] {escape(text)}")


def heading(text: str) -> None:
    OUT.print(f"\n[bold]{escape(text)}[/]")


def quiet(text: str) -> None:
    OUT.print(escape(text), style="dim")


@dataclass(frozen=True, slots=True)
class Source:
    """A stopped Kafka node's directory, and the release itself where it could be run."""

    directory: Path
    kafka: Kafka | None

    def logs(self) -> list[Path]:
        return sorted((self.directory / METADATA).glob("*.log"))

    def checkpoints(self) -> list[Path]:
        return sorted((self.directory / METADATA).glob("*.checkpoint"))


def kafka_log(home: Path, *, recorded: bool) -> Source:
    """Have Kafka write a log, or take the recorded one; say which, and why."""
    reason = "as asked for"
    if not recorded:
        try:
            with OUT.status(f"Apache Kafka {VERSION} is fetched (once), started and used ..."):
                kafka = Kafka(fetch())
                started = time.monotonic()
                source = Source(write_log(kafka, home), kafka)
            lived_s = time.monotonic() - started
            text = f"Apache Kafka {VERSION} just wrote it, in a life of {lived_s:.0f} s"
            claim(text, holds=bool(source.logs() and source.checkpoints()))
            return source
        except KafkaMissingError as error:
            reason = f"{error}".splitlines()[0]
        except (KafkaSetupError, ToolFailedError, AssertionError, OSError) as error:
            reason = f"Kafka could not be used here: {error}".splitlines()[0]
    source = Source(DIRECTORY / DYNAMIC, None)
    claim(
        f"recorded from Apache Kafka (tests/data/kafka), not written now: {reason[:100]}",
        holds=bool(source.logs() and source.checkpoints()),
    )
    return source


def show(source: Source) -> None:
    """The log, decoded: what is in it, and a few records as `esker dump-log` prints them."""
    kinds: Counter[str] = Counter()
    samples: dict[str, str] = {}
    opaque = 0
    printer = HumanPrinter(width=WIDTH)
    for path in source.logs():
        for item in read_batches_file(FILES, path, Kind.SEGMENT):
            if not isinstance(item, RecordItem):
                continue
            opaque += item.message is None
            kinds[type(item.message).__name__] += 1
            samples.setdefault(type(item.message).__name__, printer.render(item))
    for kind in SHOWN:
        quiet(samples[kind])
    claim(
        f"{kinds.total()} records of {len(kinds)} types in {len(source.logs())} segments: "
        "none is unknown, none malformed",
        holds=opaque == 0 and kinds.total() > 0,
    )


def encode_again(source: Source) -> None:
    """Every record from its typed form, every batch from its records: the same bytes."""
    files = source.logs() + source.checkpoints()
    same_records = same_files = records = 0
    for path in files:
        rebuilt = bytearray()
        for batch in batches(path):
            pairs = encoded(batch)
            originals = list(iter_records(batch))
            records += len(originals)
            same_records += sum(
                (key, value) == (original.key, original.value)
                for (key, value), original in zip(pairs, originals, strict=True)
            )
            rebuilt += build_batch(
                [(*pair, o.timestamp, ()) for pair, o in zip(pairs, originals, strict=True)],
                base_offset=batch.header.base_offset,
                leader_epoch=batch.header.leader_epoch,
                attributes=batch.header.attributes,
            )
        same_files += rebuilt == path.read_bytes()
    claim(
        f"{records} records decoded and encoded again: the bytes are Kafka's, all of them",
        holds=same_records == records > 0,
    )
    claim(
        f"{len(files)} files (segments, checkpoints) built anew from those: Kafka's, byte for byte",
        holds=same_files == len(files) > 0,
    )


def encoded(batch: Batch) -> list[tuple[bytes | None, bytes]]:
    """Key and value of a batch's records, from their decoded form."""
    pairs: list[tuple[bytes | None, bytes]] = []
    for record in iter_records(batch):
        message, version = decode(batch, record)
        if isinstance(message, ControlRecord):
            pairs.append(encode_control_record(message, version))
        else:
            pairs.append((None, encode_record(message, version)))
    return pairs


def write_checkpoint(source: Source, directory: Path) -> Path:
    """Kafka's newest state as a checkpoint of our own, verified by us and, if there, by Kafka."""
    theirs = source.checkpoints()[-1]
    snapshot_id = parse_checkpoint_name(theirs.name)
    assert snapshot_id is not None, f"not a checkpoint: {theirs}"
    with CheckpointReader(FILES, theirs) as reader:
        records = [record for _, record in reader.records()]
        assert reader.checkpoint is not None, f"{theirs} was not read to its end"
        time_ms, kraft_version, voters = reader.checkpoint.preamble
    claim(
        f"Kafka's own, {theirs.name}, reads as sound and as Kafka's",
        holds=reader.checkpoint.origin is Origin.KAFKA,
    )
    with CheckpointWriter.create(
        FILES,
        directory,
        snapshot_id,
        last_timestamp=time_ms,
        kraft_version=kraft_version,
        voters=voters,
    ) as writer:
        for record in records:
            writer.append(record)
        path = writer.freeze()
    found = verify_checkpoint(FILES, path, decode=True)
    claim(
        f"the same {len(records)} records as a checkpoint of ours: whole, by the footer's checksum",
        holds=found.record_count == len(records) and found.origin is Origin.ESKER,
    )
    if source.kafka is not None:
        said = dump(source.kafka, [path])[path]
        read = sum(len(batch.records) for batch in said if batch.fields["isControl"] == "false")
        claim(
            f"Kafka's DumpLogSegments reads all {read} of them from our file",
            holds=read == len(records),
        )
    return path


def spoil(path: Path, theirs: Path) -> None:
    """Damage a copy of our checkpoint in two ways, and have each found."""
    data = path.read_bytes()
    at = len(data) // 2
    ours, flipped = path.with_name("ours.checkpoint"), path.with_name("flipped.checkpoint")
    ours.write_bytes(data)
    flipped.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
    words = ["esker", "dump-log", "--verify", ours.name, flipped.name]
    ran = subprocess.run(
        [sys.executable, "-m", *words], cwd=path.parent, capture_output=True, text=True, check=False
    )
    quiet("  $ " + " ".join(words))
    for line in ran.stdout.splitlines():
        quiet(textwrap.fill(line, WIDTH, initial_indent="  ", subsequent_indent=" " * 11))
    batch = max(b.position for b in batches(path) if b.position <= at)
    claim(
        f"one bit flipped at byte {at} is found, in the batch that begins at {batch}",
        holds=ran.returncode == 1
        and ran.stdout.startswith("sound")
        and f"DAMAGED  {flipped.name}, position {batch}" in ran.stdout,
    )
    joined = path.with_name("joined.checkpoint")
    joined.write_bytes(theirs.read_bytes()[:batch] + data[batch:])
    sound = sum(1 for _ in batches(joined))
    try:
        verify_checkpoint(FILES, joined)
        reason = "nothing is wrong"
    except DamagedFileError as error:
        reason = error.reason
    claim(
        f"two downloads joined into one, each of its {sound} batches sound, are found out as well:",
        holds=sound > 2 and reason.startswith("crc of all before the footer"),
    )
    quiet(f"    {reason}")


def run_quorum(home: Path) -> None:
    """Commit real lines while the leader is killed; read them back from the survivors."""
    lines = real_lines(20_000)
    with Quorum(home) as quorum:
        quorum.start(*NODES)
        first = quorum.leader()
        claim(f"node {first} leads; three nodes were formatted and started", holds=first in NODES)
        killed, silence_s = commit(quorum, lines, kill_at=len(lines) // 2)
        claim(
            f"{len(lines):,} lines of Python's own sources committed; half-way its leader was "
            f"killed: {silence_s:.2f} s gap",
            holds=killed == first and silence_s > 0,
        )
        claim(
            "every acknowledged line is there, in order, on the new leader",
            holds=in_order(lines, list(read_back(quorum))),
        )
        quorum.start(killed)
        wait_until_equal(quorum, killed)
        quiet("  $ esker quorum describe --group esker-bench-log-0 --replication ...")
        quiet(quorum.table().rstrip())
        claim(f"node {killed} came back and caught up", holds=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--recorded", action="store_true", help="do not try to run a real Kafka")
    arguments = parser.parse_args()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # not every locale has a tick
    try:
        with tempfile.TemporaryDirectory(prefix="esker-demo-") as name:
            home = Path(name)
            heading("A metadata log of Apache Kafka")
            source = kafka_log(home / "kafka", recorded=arguments.recorded)
            show(source)
            heading("Encoded again")
            encode_again(source)
            heading("A checkpoint (KIP-630)")
            (home / "ours").mkdir()
            path = write_checkpoint(source, home / "ours")
            heading("Damage")
            spoil(path, source.checkpoints()[-1])
            heading("A quorum of three processes (KRaft)")
            (home / "quorum").mkdir()
            run_quorum(home / "quorum")
    except (DemoFailedError, QuorumFailedError, RecordError) as error:
        OUT.print(f"  [red]✗ not so:[/] {escape(str(error))}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
