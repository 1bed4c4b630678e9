"""The decoder of runs: the same rows as kafka-python's reader, and as our own, record by record.

Source: KIP-98, Message Format.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import pytest
from kafka.record.memory_records import MemoryRecords

from records.aborted import AbortedBatches
from records.batch import (
    HEADER_SIZE_BYTES,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Batch,
    iter_batches,
    iter_records,
    read_batch,
)
from records.batch_writer import build_batch, seal
from records.cleaning import Round, clean_block, empty_batch
from records.compression import Compression
from records.errors import RecordError
from records.final_runs import finish_run, read_final_run
from records.marker_batches import marker_batch
from records.record_block import read_block
from spark_jobs.topics.decoder import (
    COLUMNS,
    HEADERS,
    DamagedRunError,
    RunDecoder,
    StoredRun,
    schema_of,
)

NOW_MS: Final = 1_790_000_000_000
ALL: Final = schema_of((*COLUMNS, HEADERS))
ABORT, COMMIT = 0, 1

Row = dict[str, Any]
RecordTuple = tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]


def random_records(random_: random.Random, count: int, size: int) -> list[RecordTuple]:
    """Return records with nulls, empty and large values, headers, and times in any order."""

    def content() -> bytes | None:
        kind = random_.randrange(6)
        length = random_.choice((0, 1, random_.randrange(2 * size), size))
        return None if kind == 0 else random_.randbytes(length // 2) + b"x" * (length // 2)

    def headers() -> list[tuple[str, bytes | None]]:
        number = random_.choice((0, 0, 0, 1, 3, random_.randrange(20)))
        return [
            (random_.choice(("", "trace", "größe")), content()) for _ in range(number)
        ]  # fmt: skip

    with_headers = random_.random() < 0.3
    spread = random_.choice((1, 1000, 1 << 40))
    return [
        (
            content(),
            content(),
            random_.choice((NOW_MS + random_.randrange(spread), NOW_MS, -1)),
            headers() if with_headers else [],
        )
        for _ in range(count)
    ]


def random_batch(random_: random.Random, codec: Compression | None = None) -> bytearray:
    """Return a batch as a producer sends it, whose offsets begin at 0."""
    codec = random_.choice(list(Compression)) if codec is None else codec
    count = random_.choice((1, 2, 3, random_.randrange(1, 150)))
    records = random_records(random_, count, random_.choice((3, 100, 1000)))
    return build_batch(records, base_offset=0, leader_epoch=-1, compression=codec)


def appended_run(
    batches: Sequence[bytearray], base_offset: int = 0, *, append_time: int | None = None
) -> StoredRun:
    """Return a run of a WAL object, of which all rows are wanted."""
    end = base_offset + sum(read_batch(batch).header.last_offset_delta + 1 for batch in batches)
    data = b"".join(batches)
    return StoredRun(
        "orders", 3, data, base_offset, end, False, append_time, base_offset, end, "7f/12 at byte 5"
    )


def final_run(batches: Sequence[bytes | bytearray | memoryview]) -> StoredRun:
    """Return a run of a merged object, of which all rows are wanted."""
    headers = [read_batch(batch).header for batch in batches]
    base, end = headers[0].base_offset, headers[-1].end_offset
    return StoredRun(
        "orders", 3, b"".join(batches), base, end, True, None, base, end, "7f/13 at byte 0"
    )


def final_batches(run: StoredRun) -> list[Batch]:
    """Return a run's batches as a consumer gets them."""
    bounds = {"base_offset": run.base_offset, "end_offset": run.end_offset}
    if run.is_final:
        return read_final_run(run.data, **bounds)
    return finish_run(run.data, **bounds, append_time=run.append_time)


def rows_of(runs: Iterable[StoredRun], aborted: Sequence[tuple[int, int]] = ()) -> list[Row]:
    """Return the rows of runs, read one record at a time."""
    rows: list[Row] = []
    ended = AbortedBatches(aborted)
    for run in runs:
        for batch in final_batches(run):
            if ended.covers(batch.header) or batch.header.is_control:
                continue
            for record in iter_records(batch):
                if run.first_offset <= record.offset < run.stop_offset:
                    rows.append(
                        {
                            "key": None if record.key is None else bytes(record.key),
                            "value": None if record.value is None else bytes(record.value),
                            "topic": run.topic,
                            "partition": run.partition,
                            "offset": record.offset,
                            "timestamp": record.timestamp,
                            "timestampType": int(batch.header.is_log_append_time),
                            "headers": [
                                {"key": name, "value": None if value is None else bytes(value)}
                                for name, value in record.headers
                            ]
                            or None,
                        }
                    )
    return rows


def decoded(
    runs: Sequence[StoredRun],
    aborted: Sequence[tuple[int, int]] = (),
    *,
    chunk_bytes: int = 1 << 22,
) -> list[Row]:
    """Return the rows that the decoder makes; timestamps in ms."""
    rows: list[Row] = []
    for batch in RunDecoder(ALL, chunk_bytes=chunk_bytes).decode(runs, aborted=aborted):
        assert batch.schema.equals(ALL), batch.schema
        batch.validate(full=True)
        times = batch.column("timestamp").cast("int64").to_pylist()
        without = batch.drop_columns(["timestamp"]).to_pylist()
        rows += [{**row, "timestamp": at // 1000} for row, at in zip(without, times, strict=True)]
    return rows


@pytest.mark.parametrize("codec", list(Compression))
def test_decoded_rows_are_those_that_kafka_python_reads(codec: Compression) -> None:
    random_ = random.Random(int(codec))
    batches = [random_batch(random_, codec) for _ in range(30)]
    run = appended_run(batches)
    expected, offset = [], 0
    records = MemoryRecords(run.data)
    while (batch := records.next_batch()) is not None:
        for record in batch:
            expected.append(
                (
                    record.key,
                    record.value,
                    offset + record.offset,
                    record.timestamp,
                    [(key, value) for key, value in record.headers],
                )
            )
        offset += batch.last_offset_delta + 1
    found = [
        (
            row["key"],
            row["value"],
            row["offset"],
            row["timestamp"],
            [(header["key"], header["value"]) for header in row["headers"] or ()],
        )
        for row in decoded([run])
    ]
    assert found == expected


@pytest.mark.parametrize("seed", range(12))
def test_decoded_rows_of_random_runs_are_those_read_record_by_record(seed: int) -> None:
    random_ = random.Random(seed)
    runs: list[StoredRun] = []
    for number in range(random_.randrange(1, 40)):
        base = random_.choice((0, 17, 1 << 40))
        batches = [random_batch(random_) for _ in range(random_.choice((1, 1, 1, 5, 20)))]
        run = appended_run(batches, base, append_time=random_.choice((None, NOW_MS + number)))
        if random_.random() < 0.3:
            run = final_run([batch.view for batch in final_batches(run)])
        first = random_.randrange(run.base_offset, run.end_offset)
        if random_.random() < 0.5:
            stop = random_.randrange(first, run.end_offset) + 1
            run = run._replace(first_offset=first, stop_offset=stop)
        runs.append(run._replace(topic=f"t{number % 3}", partition=number))
    expected = rows_of(runs)
    assert decoded(runs) == expected
    assert decoded(runs, chunk_bytes=1000) == expected


@pytest.mark.parametrize("keeps", [0.0, 0.3, 0.9])
def test_rows_of_compacted_batches_keep_their_offsets_and_times(keeps: float) -> None:
    random_ = random.Random(5)
    batches = final_batches(appended_run([random_batch(random_) for _ in range(100)], 1000))
    block = read_block(batches)
    chosen = np.array([random_.random() < keeps for _ in block.offsets], np.bool_)
    rules = Round(now_ms=NOW_MS, delete_retention_ms=1000, last_sequences={}, salt=b"")
    kept = clean_block(block, chosen, rules).batches
    last = batches[-1].header
    if not kept or kept[-1].header.end_offset != last.end_offset:
        kept.append(empty_batch(last))
    run = final_run([batch.view for batch in kept])
    assert decoded([run]) == rows_of([run])
    assert [row["offset"] for row in decoded([run])] == block.offsets[chosen].tolist()


def test_records_with_hundreds_of_headers_keep_their_order() -> None:
    random_ = random.Random(12)
    records: list[RecordTuple] = [
        (None, b"x", NOW_MS, [(f"name {n}", b"%d" % n) for n in range(count)])
        for count in [random_.choice((0, 1, 2)) for _ in range(200)] + [300, 0, 500]
    ]
    run = appended_run([build_batch(records, base_offset=0, leader_epoch=0)])
    assert decoded([run]) == rows_of([run])


def test_large_batches_that_exceed_the_buffer_are_decoded() -> None:
    records = [(None, bytes(5000), NOW_MS, [])] * 100
    batches = [
        build_batch(records, base_offset=0, leader_epoch=0, compression=codec)
        for codec in Compression
    ]
    run = appended_run(batches)
    assert decoded([run], chunk_bytes=1000) == rows_of([run])


# --- transactions ---------------------------------------------------------------------------------


def transaction_batch(producer_id: int, base_offset: int, count: int) -> bytearray:
    """Return a transactional batch with its final offsets."""
    records = [(b"key", b"%d" % producer_id, NOW_MS, [])] * count
    return build_batch(
        records,
        base_offset=base_offset,
        leader_epoch=0,
        attributes=TRANSACTIONAL,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
    )


def marker(producer_id: int, base_offset: int, outcome: int) -> bytes:
    """Return a transaction marker's control batch."""
    return marker_batch(
        base_offset=base_offset,
        timestamp=NOW_MS,
        producer_id=producer_id,
        producer_epoch=0,
        outcome=outcome,
        coordinator_epoch=0,
    )


def test_control_batches_have_no_rows() -> None:
    run = final_run([transaction_batch(7, 0, 2), marker(7, 2, COMMIT), transaction_batch(7, 3, 1)])
    assert [row["offset"] for row in decoded([run])] == [0, 1, 3]


def test_rows_of_aborted_transactions_are_left_out_for_read_committed() -> None:
    parts = [
        transaction_batch(7, 0, 2),
        transaction_batch(8, 2, 2),
        marker(7, 4, ABORT),
        transaction_batch(7, 5, 2),
        marker(8, 7, COMMIT),
        marker(7, 8, COMMIT),
        transaction_batch(8, 9, 1),
        build_batch([(None, b"plain", NOW_MS, [])], base_offset=10, leader_epoch=0),
        marker(8, 11, ABORT),
    ]
    aborted = [(7, 0), (8, 9)]
    whole = final_run(parts)
    assert [row["offset"] for row in decoded([whole], aborted)] == [2, 3, 5, 6, 10]
    cut = [final_run(parts[:3]), final_run(parts[3:])]
    assert decoded(cut, aborted) == decoded([whole], aborted) == rows_of(cut, aborted)
    assert len(decoded([whole])) == 8


# --- damage ---------------------------------------------------------------------------------------


def test_a_flipped_byte_is_an_error_that_names_topic_partition_offsets_and_object() -> None:
    random_ = random.Random(3)
    good = appended_run([random_batch(random_) for _ in range(3)], 100)
    begins = [batch.position for batch in iter_batches(good.data)]
    for position in range(0, len(good.data), max(1, len(good.data) // 200)):
        data = bytearray(good.data)
        data[position] ^= 1 << random_.randrange(8)
        damaged = good._replace(data=bytes(data))
        in_batch = position - max(begin for begin in begins if begin <= position)
        if in_batch < 8 or 12 <= in_batch < 16:  # offset and leader epoch, which readers stamp
            assert decoded([damaged]) == rows_of([good])
            continue
        with pytest.raises(DamagedRunError, match=r"orders-3, offsets 100 to \d+, 7f/12 at byte 5"):
            decoded([good, damaged])


def test_the_damaged_run_of_several_is_named() -> None:
    random_ = random.Random(4)
    runs = [
        appended_run([random_batch(random_)], 100)._replace(name=f"object {number}")
        for number in range(5)
    ]
    data = bytearray(runs[2].data)
    data[-1] ^= 1
    runs[2] = runs[2]._replace(data=bytes(data))
    with pytest.raises(DamagedRunError, match=r"object 2: .*crc"):
        decoded(runs)


@pytest.mark.parametrize("change", ["short", "long", "offsets", "cut"])
def test_batches_that_do_not_make_up_their_run_are_damage(change: str) -> None:
    random_ = random.Random(6)
    run = appended_run([random_batch(random_) for _ in range(3)], 50)
    match change:
        case "short":
            run = run._replace(end_offset=run.end_offset - 1)
        case "long":
            run = run._replace(end_offset=run.end_offset + 1)
        case "offsets":
            run = final_run([batch.view for batch in final_batches(run)])
            run = run._replace(base_offset=run.base_offset + 1)
        case "cut":
            run = run._replace(data=bytes(run.data)[:-1])
    good = appended_run([random_batch(random_)])
    with pytest.raises(DamagedRunError):
        decoded([good, run, good])


def test_a_run_that_ends_inside_the_next_runs_batch_is_damage() -> None:
    """Joined, the two runs are whole batches; each for itself is none."""
    random_ = random.Random(8)
    one, two = (appended_run([random_batch(random_)]) for _ in range(2))
    data = bytes(one.data) + bytes(two.data)
    cut = len(one.data) + 5
    with pytest.raises(DamagedRunError):
        decoded([one._replace(data=data[:cut]), two._replace(data=data[cut:])])


@pytest.mark.parametrize("seed", range(20))
def test_nonsense_with_a_right_checksum_is_an_error_or_what_the_reference_reads(seed: int) -> None:
    random_ = random.Random(seed)
    outcomes = set()
    for _ in range(60):
        batch = random_batch(random_, Compression.NONE)
        if len(batch) > 5000:
            continue
        for _ in range(random_.choice((1, 1, 4))):
            position = random_.randrange(HEADER_SIZE_BYTES, len(batch))
            batch[position] = random_.choice((0, 1, 0x7F, 0x80, 0xFF, random_.randrange(256)))
        seal(batch)
        run = appended_run([batch])
        try:
            expected = rows_of([run])
        except RecordError:
            outcomes.add("error")
            with pytest.raises(DamagedRunError):
                decoded([run])
            continue
        if any(abs(row["timestamp"]) > 1 << 53 for row in expected):
            continue  # too far away for microseconds
        outcomes.add("rows")
        assert decoded([run]) == expected
    assert outcomes == {"error", "rows"}


def test_a_timestamp_that_microseconds_cannot_hold_is_an_error() -> None:
    """As in Spark's own source, which fails with `long overflow`."""
    batch = build_batch([(None, None, 1 << 60, [])], base_offset=0, leader_epoch=0)
    with pytest.raises(DamagedRunError, match="timestamp"):
        decoded([appended_run([batch])])


def test_append_time_of_a_final_run_is_its_batches_own() -> None:
    batch = build_batch(
        [(None, b"x", 5, [])], base_offset=9, leader_epoch=0, attributes=LOG_APPEND_TIME
    )
    (row,) = decoded([final_run([batch])])
    assert (row["offset"], row["timestamp"], row["timestampType"]) == (9, 5, 1)


def test_a_batch_outside_of_the_wanted_offsets_is_not_verified() -> None:
    """A task reads the batches of its own part of a run; another task answers for the rest."""
    first, second = (
        build_batch([(None, b"x", 5, [])], base_offset=offset, leader_epoch=0) for offset in (0, 1)
    )
    first[-3] ^= 1
    run = final_run([second])
    data = bytes(first) + bytes(second)
    run = run._replace(data=data, base_offset=0, first_offset=1)
    assert [row["offset"] for row in decoded([run])] == [1]


def test_an_unknown_codec_is_damage() -> None:
    batch = build_batch([(None, b"x", 5, [])], base_offset=0, leader_epoch=0)
    batch[22] |= 7
    seal(batch)
    with pytest.raises(DamagedRunError, match="codec"):
        decoded([appended_run([batch])])


def test_only_the_columns_of_the_schema_are_made() -> None:
    run = appended_run([random_batch(random.Random(1))])
    (batch,) = RunDecoder(schema_of(("offset", "value"))).decode([run])
    assert batch.schema.names == ["offset", "value"]
    assert batch.column("offset").to_pylist() == [row["offset"] for row in rows_of([run])]
