"""Tests that damage of an archive is found and located, and never read as if it were the log.

Source: docs/design/pipeline.md#the-archive.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from crc32c import crc32c

from records.batch import iter_batches
from records.batch_writer import build_value_batch
from spark_jobs.archive.check import check_archive
from spark_jobs.archive.engines import LocalArchiveEngine
from spark_jobs.archive.job import ForeignArchiveError, TablesError, open_archive
from spark_jobs.readers.archive_layout import (
    CHECKPOINT,
    PARQUET,
    About,
    ArchiveError,
    DamagedArchiveError,
    Manifest,
    Range,
    chain,
    plan_from_json,
)
from spark_jobs.readers.archive_layout import LOG as KIND_LOG
from spark_jobs.readers.archived_logs import ArchivedLogs, read_manifest
from spark_jobs.readers.avro_files import AvroFileError, AvroWriter, read_avro
from spark_jobs.readers.envelope import SCHEMA, EnvelopeError, batches_of, rows_of
from spark_jobs.readers.logs import LogsError
from spark_jobs.readers.object_store import ObjectStore, StoreOptions, open_store
from tests.diskless.stores.conftest import new_bucket, s3_endpoint
from tests.spark_jobs.archive_world import (
    CLUSTER_ID,
    LOG,
    FileLogs,
    logs,
    odd_batches,
    one_pass,
    raw,
    store,
    values,
)

__all__ = ["logs", "s3_endpoint", "store"]  # fixtures


def test_an_archive_refuses_the_records_of_another_cluster_and_another_format(
    logs: FileLogs, store: ObjectStore
) -> None:
    one_pass(logs, store)
    with pytest.raises(ForeignArchiveError, match="another --out"):
        one_pass(replace(logs, cluster_id="another"), store)
    with pytest.raises(TablesError, match="avro, not parquet"):
        one_pass(logs, store, PARQUET)
    store.write("archive.json", b'{"format": 2}')
    with pytest.raises(ArchiveError, match="format 2"):
        ArchivedLogs(store)


def test_the_archive_refuses_a_log_that_diverges_from_the_archived_records(
    logs: FileLogs, store: ObjectStore
) -> None:
    """The cluster id and the offsets match, but the records before them differ."""
    archived = one_pass(logs, store).end_offset
    for path in (logs.directory / LOG).iterdir():
        path.unlink()
    (logs.directory / LOG).rmdir()
    logs.append(odd_batches(seed=6, count=80, epoch=9))
    assert logs.end_offset > archived
    with pytest.raises(ForeignArchiveError, match=f"before offset {archived} .* of epoch 9"):
        one_pass(logs, store)
    assert ArchivedLogs(store).log(LOG).end_offset() == archived


def test_reading_an_archive_from_a_directory_without_one_raises_an_error(
    store: ObjectStore,
) -> None:
    with pytest.raises(LogsError, match=r"no archive.json"):
        ArchivedLogs(store)
    with pytest.raises(LogsError):
        ArchivedLogs(open_store(f"{store.uri}/nowhere"))


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


DAMAGE: list[tuple[str, Callable[[bytes], bytes], str]] = [
    ("record", flipped, "SHA-256"),
    ("record", lambda data: data[: len(data) // 2], "SHA-256"),
    ("record", lambda _: b"", "SHA-256"),
    ("topic", flipped, "SHA-256"),
    ("manifest", lambda data: data[:50], "manifest"),
    ("manifest", lambda data: data.replace(b'"records"', b'"wreckords"'), "records"),
    ("manifest", lambda data: data.replace(CLUSTER_ID.encode(), b"another"), "another"),
]


@pytest.mark.parametrize(("what", "change", "told"), DAMAGE)
def test_the_verification_of_an_archive_names_damaged_files(
    logs: FileLogs, store: ObjectStore, what: str, change: Callable[[bytes], bytes], told: str
) -> None:
    one_pass(logs, store)
    prefix = "manifest/" if what == "manifest" else f"data/{LOG}/{what}/"
    hit = list(store.list(prefix))[1]
    store.write(hit.key, change(store.read(hit.key, 0, hit.size_bytes)))
    (fault,) = check_archive(store, engine=LocalArchiveEngine()).faults
    assert told in fault.what
    if what == "record":
        with pytest.raises(DamagedArchiveError, match="SHA-256"):
            values(ArchivedLogs(store).log(LOG), logs.end_offset)


def test_the_verification_of_an_archive_names_missing_files(
    logs: FileLogs, store: ObjectStore
) -> None:
    one_pass(logs, store)
    root = Path(store.uri)
    files = sorted((root / "data" / LOG / "record").iterdir())
    files[2].unlink()
    (fault,) = check_archive(store, engine=LocalArchiveEngine()).faults
    assert files[2].name in fault.what

    manifests = sorted((root / "manifest" / LOG).iterdir())
    manifests[3].unlink()
    faults = check_archive(store, engine=LocalArchiveEngine()).faults
    assert "no manifest" in faults[-1].what
    assert ArchivedLogs(store).log(LOG).end_offset() == faults[-1].start_offset


def test_the_verification_of_an_archive_reports_an_unknown_file_without_failing(
    logs: FileLogs, store: ObjectStore
) -> None:
    one_pass(logs, store)
    store.write(f"data/{LOG}/record/mine.avro", b"?")
    found = check_archive(store, engine=LocalArchiveEngine())
    assert (found.faults, found.strangers) == ([], [f"data/{LOG}/record/mine.avro"])


@pytest.mark.parametrize("data", [b"", b"Obj\x01", b"x" * 100, b"Obj\x01\x02\x00"])
def test_reading_an_archive_file_that_is_not_avro_raises_an_error(data: bytes) -> None:
    with pytest.raises(AvroFileError):
        list(read_avro(data))


def test_reading_a_truncated_avro_file_raises_an_error_or_returns_no_rows(logs: FileLogs) -> None:
    writer = AvroWriter(SCHEMA, {})
    for batch in iter_batches(logs.raw()):
        writer.write(rows_of(batch))
    data = writer.finish()
    for size in range(0, len(data), 97):
        try:
            rows = list(read_avro(data[:size]))
        except AvroFileError:
            continue
        assert rows == []


def test_rebuilding_batches_from_rows_without_a_batch_header_raises_an_error() -> None:
    (batch, *_) = iter_batches(b"".join(odd_batches(3, 4)[1:]))
    rows = rows_of(batch) * 2
    rows[0] = {**rows[0], "batch": None}
    with pytest.raises(EnvelopeError, match="beginning"):
        list(batches_of(rows))


def test_overlapping_archive_files_of_two_jobs_are_read_as_one_chain_without_overlaps() -> None:
    """Two concurrent jobs left these manifests; every reader must choose the same chain."""
    links = [
        Range(LOG, 0, 9, KIND_LOG),
        Range(LOG, 0, 5, KIND_LOG),
        Range(LOG, 0, 7, CHECKPOINT),
        Range(LOG, 5, 8, CHECKPOINT),
        Range(LOG, 9, 12, KIND_LOG),
        Range(LOG, 8, 20, KIND_LOG),
        Range(LOG, 21, 22, KIND_LOG),
    ]
    assert [(one.end_offset, one.kind) for one in chain(links)] == [
        (5, KIND_LOG),
        (8, CHECKPOINT),
        (20, KIND_LOG),
    ]


def test_manifests_and_plans_survive_encoding_and_decoding(
    logs: FileLogs, store: ObjectStore
) -> None:
    about = open_archive(store, logs.cluster_id)
    assert About.from_json(about.to_json()) == about
    assert open_archive(store, logs.cluster_id) == about


@pytest.mark.parametrize("junk", [None, "x y", -1, 1.5, True, [], {}, "../.."])
def test_the_archive_reader_refuses_impossible_values_in_manifests_and_plans(
    logs: FileLogs, store: ObjectStore, junk: object
) -> None:
    """Every value of a manifest and of a plan is replaced by an impossible one."""
    one_pass(logs, store)
    manifest = read_manifest(store, ArchivedLogs(store).log(LOG).links[0])
    known = json.loads(manifest.to_json())
    for part, number in [("range", None), *(("files", i) for i in range(len(known["files"])))]:
        for key in known[part] if number is None else known[part][number]:
            found = json.loads(manifest.to_json())
            place = found[part] if number is None else found[part][number]
            if isinstance(junk, str) and isinstance(place[key], str) and part == "files":
                continue  # another name, which is not there
            place[key] = junk
            with pytest.raises(DamagedArchiveError):
                Manifest.from_json(json.dumps(found).encode(), "manifest")
            if part == "range":
                data = json.dumps({"ranges": [found["range"]]}).encode()
                with pytest.raises(DamagedArchiveError):
                    plan_from_json(data, "plan")


def test_archiving_an_empty_batch_raises_an_error_with_its_offset(
    logs: FileLogs, store: ObjectStore
) -> None:
    """Compaction leaves such batches, and Esker's logs are never compacted."""
    at = logs.end_offset
    empty = build_value_batch([b"gone"], base_offset=at, leader_epoch=1, timestamp=1)[:61]
    empty[8:12] = (61 - 12).to_bytes(4, "big")  # its length
    empty[57:61] = bytes(4)  # of records
    empty[17:21] = crc32c(empty[21:]).to_bytes(4, "big")
    logs.append([empty])
    with pytest.raises(ArchiveError, match=f"{LOG}: the batch at offset {at} has no records"):
        one_pass(logs, store)


def test_the_archive_reader_does_not_read_a_file_larger_than_in_its_manifest(
    logs: FileLogs, store: ObjectStore
) -> None:
    one_pass(logs, store)
    file = read_manifest(store, ArchivedLogs(store).log(LOG).links[0]).envelope
    store.write(file.key, bytes(file.bytes + 1))
    with pytest.raises(DamagedArchiveError, match=f"at most {file.bytes} were written"):
        raw(store)


def test_an_archive_on_s3_can_be_written_verified_and_read(
    logs: FileLogs, s3_endpoint: str
) -> None:
    config = new_bucket(s3_endpoint)
    options = StoreOptions(config.endpoint_url, config.region)
    store = open_store(f"s3://{config.bucket}/archive", options)
    one_pass(logs, store, range_bytes=10_000)
    logs.append(odd_batches(6, 5, first_offset=logs.end_offset, epoch=2))
    one_pass(logs, store, range_bytes=10_000)
    assert raw(store) == logs.raw()
    assert not check_archive(store, engine=LocalArchiveEngine()).faults
