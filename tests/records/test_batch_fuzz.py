"""Whatever the bytes, reading a batch ends in records or in a RecordError, in bounded memory."""

from __future__ import annotations

import tracemalloc

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from records.batch import iter_batches, iter_records
from records.batch_writer import build_batch
from records.compression import Compression
from records.errors import RecordError
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
