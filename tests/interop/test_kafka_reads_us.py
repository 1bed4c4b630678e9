"""Apache Kafka's own tools read the segments and checkpoints that we write.

DumpLogSegments decodes every field of every record; MetadataShell replays a log as a Kafka node
does, and shows the image of the cluster that comes of it.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from uuid import UUID

import pytest

from records.batch import iter_records
from records.compression import Compression
from records.frame import decode_record, encode_record
from records.metadata import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    FenceBrokerRecord,
    RegisterBrokerRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    ZkMigrationStateRecord,
)
from records.schema import MetadataRecord
from tests.interop.dump_output import DumpedBatch, dump
from tests.interop.kafka_run import DUMP, SHELL_ATTEMPTS, Kafka
from tests.interop.ours import OurFiles, write_checkpoint, write_everything, write_segments
from tests.interop.reading import batches, decode, read
from tests.interop.recording import DYNAMIC, Recording
from tests.interop.sample_records import samples, skippable
from tests.interop.upstream_json import kind_of, to_json

pytestmark = pytest.mark.java

INDEX_SUFFIXES = (".index", ".timeindex")


@pytest.fixture(scope="module")
def our_files(tmp_path_factory: pytest.TempPathFactory) -> OurFiles:
    """Segments and checkpoints with records of every upstream type and version, and with tagged
    fields that only we know, which Kafka is to pass over.
    """
    records = [*samples(), *skippable()]
    return write_everything(tmp_path_factory.mktemp("ours"), records)


@pytest.fixture(scope="module")
def dumped(kafka: Kafka, our_files: OurFiles) -> dict[Path, list[DumpedBatch]]:
    """What DumpLogSegments says is in them."""
    return dump(kafka, our_files.segments + our_files.checkpoints)


def test_kafka_decodes_every_record_type_to_the_values_that_esker_wrote(
    our_files: OurFiles, dumped: dict[Path, list[DumpedBatch]]
) -> None:
    expected = [(kind_of(r), version, to_json(r, version)) for r, version in our_files.records]
    log = [batch for segment in our_files.segments for batch in dumped[segment]]
    assert _payloads(log) == expected
    for checkpoint in our_files.checkpoints:
        assert _payloads(dumped[checkpoint]) == expected, checkpoint.name


def _payloads(batches: list[DumpedBatch]) -> list[tuple[str, int, object]]:
    return [
        (record.kind, record.version, record.data)
        for batch in batches
        if batch.fields["isControl"] == "false"
        for record in batch.records
    ]


def test_kafka_and_esker_read_the_same_batches(
    dumped: dict[Path, list[DumpedBatch]],
) -> None:
    """Headers, control records, offsets, positions, and that Kafka finds the checksum right."""
    for file, said in dumped.items():
        assert read(file) == said, file


def test_the_sample_logs_for_kafka_have_several_segments_with_every_compression_codec(
    our_files: OurFiles,
) -> None:
    assert len(our_files.segments) > 2
    used = {batch.header.compression for file in our_files.segments for batch in batches(file)}
    assert used == set(Compression)


def test_kafkas_tool_accepts_the_indexes_of_a_log_written_by_esker(
    kafka: Kafka, our_files: OurFiles
) -> None:
    """DumpLogSegments looks up every entry of an index in the segment beside it."""
    indexes = [s.with_suffix(suffix) for s in our_files.segments for suffix in INDEX_SUFFIXES]
    assert sum(index.stat().st_size > 0 for index in indexes) > len(our_files.segments)
    assert not _verify_indexes(kafka, indexes)


def test_kafkas_tool_reports_a_wrong_index_entry_in_a_log_written_by_esker(
    kafka: Kafka, our_files: OurFiles, tmp_path: Path
) -> None:
    """The claim before this one would be worth nothing if it did not."""
    shutil.copytree(our_files.segments[0].parent, tmp_path, dirs_exist_ok=True)
    indexes = [i for s in INDEX_SUFFIXES for i in tmp_path.glob(f"*{s}") if i.stat().st_size]
    for index in indexes:
        content = bytearray(index.read_bytes())
        content[3 if index.suffix == ".index" else 7] ^= 1  # of the offset, of the time
        index.write_bytes(content)
    said = _verify_indexes(kafka, indexes)
    assert all(str(index) in said for index in indexes), said


def _verify_indexes(kafka: Kafka, indexes: list[Path]) -> str:
    """What DumpLogSegments has against index files."""
    joined = ",".join(str(index) for index in indexes)
    return kafka.run(DUMP, "--verify-index-only", "--files", joined).err


def test_kafka_replays_a_log_rewritten_by_esker_to_the_same_metadata_image(
    kafka: Kafka, written_by_kafka: Recording, tmp_path: Path
) -> None:
    """A Kafka node's image of the cluster is the same from three files: the checkpoint it wrote, a
    checkpoint of ours with the same records, and a log of ours that leads up to the same offset.
    """
    theirs = written_by_kafka.checkpoints_of(DYNAMIC)[-1]
    expected = _image(kafka, theirs)
    assert "orders" in expected
    end_offset = int(theirs.name[:20])

    checkpoint = write_checkpoint(tmp_path, _values([theirs]), end_offset=end_offset)
    assert _image(kafka, checkpoint) == expected

    logs = [file for file in written_by_kafka.logs() if file.parents[1].name == DYNAMIC]
    values = _values(logs, end_offset=end_offset) + _changes_that_cancel(logs)
    # One record a batch: Kafka takes an abort for one only if its transaction began in an earlier
    # batch, as that of a controller does.
    (segment,) = write_segments(
        tmp_path / "log", values, segment_bytes=1 << 30, records_per_batch=1
    )
    assert _image(kafka, segment) == expected


def _values(files: list[Path], *, end_offset: int | None = None) -> list[bytes]:
    """The metadata records of some files, decoded and encoded again by us."""
    found = []
    for file in files:
        for batch in batches(file):
            for record in iter_records(batch):
                if batch.header.is_control or record.offset >= (end_offset or record.offset + 1):
                    continue
                message, version = decode(batch, record)
                assert isinstance(message, MetadataRecord)
                found.append(encode_record(message, version))
    return found


def _changes_that_cancel(logs: list[Path]) -> list[bytes]:
    """The records that no request makes a 4.x controller write; together they change nothing."""
    epoch = max(
        message.broker_epoch
        for value in _values(logs)
        if isinstance(message := decode_record(value), RegisterBrokerRecord)
    )
    return [
        encode_record(record)
        for record in (
            BeginTransactionRecord(name="never mind"),
            TopicRecord(name="never-was", topic_id=UUID(int=77)),
            AbortTransactionRecord(reason="never mind"),
            FenceBrokerRecord(id=1, epoch=epoch),
            UnfenceBrokerRecord(id=1, epoch=epoch),
            ZkMigrationStateRecord(zk_migration_state=0),
        )
    ]


def _image(kafka: Kafka, file: Path) -> str:
    """What MetadataShell shows, without the line on where the image came from.

    The shell answers before it has loaded the file to its end, now and then; its line on where the
    image came from tells.
    """
    end = max(batch.header.last_offset for batch in batches(file) if not batch.header.is_control)
    for _ in range(SHELL_ATTEMPTS):
        shown = kafka.shell(file, "tree", "/image")
        image, loaded, rest = re.split(r" *provenance:\n *offset (-?\d+),.*\n", shown)
        if int(loaded) == end:
            return image + rest
    raise AssertionError(f"MetadataShell never came to offset {end} of {file}: {shown}")
