"""Whatever the bytes, reading a batch ends in records or in a RecordError, in bounded memory."""

from __future__ import annotations

import tracemalloc

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from records.batch import Batch, iter_batches, iter_records, read_batch
from records.batch_writer import build_batch
from records.compression import Compression
from records.errors import IncompleteBatchError, RecordError
from tests.examples import examples

pytestmark = pytest.mark.slow

LIMIT_BYTES = 200_000


@st.composite
def damaged_batches(draw: st.DrawFn) -> bytes:
    """Two batches with bytes replaced, removed or added, and often a checksum that matches."""
    codec = draw(st.sampled_from(list(Compression)))
    records = draw(
        st.lists(
            st.tuples(
                st.none() | st.binary(max_size=9),
                st.none() | st.binary(max_size=60),
                st.integers(0, 1 << 40),
                st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3))),
            ),
            min_size=1,
            max_size=5,
        )
    )
    batch = build_batch(records, base_offset=0, leader_epoch=0, compression=codec)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(batch)))
        match draw(st.integers(0, 3)):
            case 0 if at < len(batch):
                batch[at] = draw(st.integers(0, 255))
            case 1:
                del batch[at : at + draw(st.integers(1, 9))]
            case 2:
                batch[at:at] = draw(st.binary(min_size=1, max_size=9))
            case _:
                batch[at : at + 4] = draw(st.sampled_from([b"\xff" * 4, b"\x7f\xff\xff\xff"]))
    if len(batch) > 61 and draw(st.booleans()):
        batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
        batch[16] = 2
        batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
    return bytes(batch) + bytes(build_batch(records, base_offset=9, leader_epoch=0))


def read_everything(data: bytes) -> int:
    count = 0
    try:
        for batch in iter_batches(data):
            for record in iter_records(batch, limit_bytes=LIMIT_BYTES):
                count += len(record.value or b"")
    except RecordError:
        pass
    return count


@settings(max_examples=examples(200), deadline=None)
@given(data=damaged_batches())
def test_reading_a_damaged_batch_raises_only_record_errors(data):
    read_everything(data)


def read_one_by_one(
    data: bytes, *, verify_crc: bool, max_size_bytes: int, allow_partial_tail: bool
) -> tuple[list[Batch], str]:
    """The batches of a buffer by `read_batch`, and the error that ends them, or nothing."""
    found: list[Batch] = []
    position = 0
    while position < len(data):
        try:
            batch = read_batch(data, position, max_size_bytes=max_size_bytes, verify_crc=verify_crc)
        except IncompleteBatchError as error:
            return found, "" if allow_partial_tail else repr(error)
        except RecordError as error:
            return found, repr(error)
        found.append(batch)
        position += batch.header.size_bytes
    return found, ""


@settings(max_examples=examples(300), deadline=None)
@given(
    data=damaged_batches(),
    verify_crc=st.booleans(),
    max_size_bytes=st.sampled_from([100, 1 << 20]),
    allow_partial_tail=st.booleans(),
)
def test_batches_read_in_a_loop_are_those_that_are_read_one_by_one(
    data, verify_crc, max_size_bytes, allow_partial_tail
):
    """Mutants: the loop leaves out the number of records, an offset, the limit or the checksum."""
    how = {
        "verify_crc": verify_crc,
        "max_size_bytes": max_size_bytes,
        "allow_partial_tail": allow_partial_tail,
    }
    found: list[Batch] = []
    ended = ""
    try:
        for batch in iter_batches(data, **how):
            found.append(batch)
    except RecordError as error:
        ended = repr(error)
    assert (found, ended) == read_one_by_one(data, **how)


@settings(max_examples=examples(150), deadline=None)
@given(data=st.binary(max_size=300))
def test_reading_random_bytes_as_batches_raises_only_record_errors(data):
    read_everything(data)


@settings(max_examples=100, deadline=None)
@given(data=damaged_batches())
def test_reading_a_damaged_batch_takes_bounded_memory(data):
    """The least of two peaks: another thread of the test runner may allocate during one."""
    peaks = []
    for _ in range(2):
        tracemalloc.start()
        read_everything(data)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert min(peaks) < 4 * LIMIT_BYTES + 100_000
