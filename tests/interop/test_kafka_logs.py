"""We read the log and the checkpoints that a real Kafka wrote, as Kafka itself reads them.

Each claim is made twice: of what a node wrote during this run, and of a recording, which is there
on machines without Java (tests/data/kafka/README.md says how it was made).
"""

from __future__ import annotations

from collections import Counter

from records.batch import iter_records
from records.batch_writer import build_batch
from records.compression import Compression
from records.frame import CONTROL_RECORDS, METADATA_RECORDS, encode_control_record, encode_record
from records.schema import ControlRecord
from tests.interop.reading import batches, decode, read
from tests.interop.recording import MAX_BYTES, Recording

NEVER_WRITTEN_BY_KAFKA_4 = {
    "FenceBrokerRecord",
    "UnfenceBrokerRecord",
    "ZkMigrationStateRecord",
    "AbortTransactionRecord",
}


def test_eskers_log_reader_and_kafkas_tool_read_the_same_records(kafka_files: Recording) -> None:
    """Every field of every batch header and of every record, in every file."""
    dumped = kafka_files.dumped()
    assert dumped.keys() == {*kafka_files.logs(), *kafka_files.checkpoints()}
    for file, said in dumped.items():
        assert read(file) == said, file


def test_esker_encodes_every_record_of_kafkas_log_to_the_same_bytes(kafka_files: Recording) -> None:
    for file in [*kafka_files.logs(), *kafka_files.checkpoints()]:
        for batch in batches(file):
            for record in iter_records(batch):
                message, version = decode(batch, record)
                if isinstance(message, ControlRecord):
                    assert encode_control_record(message, version) == (record.key, record.value)
                else:
                    assert encode_record(message, version) == record.value, message


def test_esker_builds_every_batch_of_kafkas_log_to_the_same_bytes(kafka_files: Recording) -> None:
    """Header, varints and checksum: our writer, given a batch's records, gives the batch."""
    for file in [*kafka_files.logs(), *kafka_files.checkpoints()]:
        for batch in batches(file):
            header = batch.header
            records = list(iter_records(batch))
            assert header.compression is Compression.NONE
            built = build_batch(
                [(r.key, r.value, r.timestamp, ()) for r in records],
                base_offset=header.base_offset,
                leader_epoch=header.leader_epoch,
                attributes=header.attributes,
            )
            assert built == batch.view, (file, header)


def test_the_recorded_kafka_log_has_every_record_type_that_kafka_writes(
    kafka_files: Recording,
) -> None:
    """Else the claims above are about less than they seem to be."""

    written = Counter(
        type(decode(batch, record)[0]).__name__
        for file in [*kafka_files.logs(), *kafka_files.checkpoints()]
        for batch in batches(file)
        for record in iter_records(batch)
    )
    declared = [*METADATA_RECORDS.values(), *CONTROL_RECORDS.values()]
    upstream = {cls.__name__ for cls in declared if (cls.schema().key or 0) < 1000}
    assert upstream - written.keys() == NEVER_WRITTEN_BY_KAFKA_4
    assert sum(written.values()) > 200


def test_the_recorded_kafka_log_is_below_the_size_limit_for_the_repository(
    recorded_from_kafka: Recording,
) -> None:

    files = [file for file in recorded_from_kafka.directory.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < MAX_BYTES
