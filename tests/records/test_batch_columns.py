"""Columns of headers, beside the reader that takes one batch after the other."""

from __future__ import annotations

import random

import pytest

from records.batch import iter_batches
from records.batch_columns import BatchColumns, read_columns
from records.batch_writer import build_batch
from records.compression import Compression
from records.errors import RecordError
from records.final_runs import RunBuilder, finish_columns, finish_run

HEADER_BYTES = 61


def buffer_of(rng: random.Random, *, base_offset: int = 0) -> bytes:
    """Return some batches; gaps of offsets lie between them."""
    batches = []
    for _ in range(rng.randrange(1, 12)):
        rows = [(b"k", rng.randbytes(rng.randrange(40)), 5, ()) for _ in range(rng.randrange(1, 5))]
        codec = rng.choice([Compression.NONE, Compression.LZ4])
        batches.append(
            build_batch(rows, base_offset=base_offset, leader_epoch=-1, compression=codec)
        )
        base_offset += len(rows) + rng.randrange(3)
    return b"".join(batches)


def columns_of(data: bytes) -> BatchColumns:
    columns = read_columns(memoryview(bytearray(data)), verify_crc=True)
    assert columns is not None
    return columns


def test_columns_have_the_headers_of_the_batches_one_by_one() -> None:
    rng = random.Random(1)
    for _ in range(50):
        data = buffer_of(rng)
        batches = columns_of(data).batches()
        assert batches == list(iter_batches(data))


def test_columns_refuse_exactly_the_bytes_that_the_reader_of_batches_refuses() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    refused = 0
    for _ in range(3_000):
        data = bytearray(buffer_of(rng))
        kind = rng.randrange(4)
        if kind == 0:
            del data[rng.randrange(len(data)) :]
        elif kind < 3:
            at = rng.randrange(min(len(data), HEADER_BYTES) if kind == 1 else len(data))
            data[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, data[at] ^ 1])
        verify_crc = rng.random() < 0.5
        try:
            batches = list(iter_batches(data, verify_crc=verify_crc))
        except RecordError:
            batches = []
        columns = read_columns(memoryview(data), verify_crc=verify_crc)
        assert ([] if columns is None else columns.batches()) == batches
        refused += columns is None
    assert 300 < refused < 2_700, refused


def test_stamped_columns_equal_batches_that_are_stamped_one_by_one() -> None:
    rng = random.Random(2)
    for _ in range(50):
        batches = [
            build_batch([(None, b"v", 5, ())] * rng.randrange(1, 4), base_offset=0, leader_epoch=-1)
            for _ in range(rng.randrange(1, 8))
        ]
        data = b"".join(batches)
        end = 700 + sum(batch.header.record_count for batch in iter_batches(data))
        columns = finish_columns(data, base_offset=700, end_offset=end)
        assert columns is not None
        stamped = finish_run(data, base_offset=700, end_offset=end, append_time=None)
        assert columns.batches() == stamped
        assert list(iter_batches(b"".join(batch.view for batch in stamped))) == stamped
        assert finish_columns(data, base_offset=700, end_offset=end + 1) is None


@pytest.mark.parametrize("max_run_bytes", [1, 200, 500, 10_000])
def test_runs_of_columns_equal_runs_of_single_batches(max_run_bytes: int) -> None:
    rng = random.Random(max_run_bytes)
    for _ in range(50):
        pieces, base_offset = [], 0
        for _ in range(rng.randrange(1, 4)):
            pieces.append((columns_of(buffer_of(rng, base_offset=base_offset)), rng.randrange(99)))
            base_offset = pieces[-1][0].batches()[-1].header.end_offset
        one = RunBuilder(0, max_run_bytes=max_run_bytes)
        singly = [
            run
            for columns, time in pieces
            for batch in columns.batches()
            for run in one.add(batch, time)
        ]
        singly += one.take()
        whole = RunBuilder(0, max_run_bytes=max_run_bytes)
        at_once = [run for columns, time in pieces for run in whole.add_all(columns, time)]
        at_once += whole.take()
        assert whole.end_offset == one.end_offset == base_offset
        for run, other in zip(singly, at_once, strict=True):
            assert run._replace(parts=()) == other._replace(parts=())
            assert b"".join(run.parts) == b"".join(other.parts)
