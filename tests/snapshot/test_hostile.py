"""Whatever the bytes, reading them ends, in an answer or a RecordError, in bounded memory."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from records.batch import CRC_START, MAX_BATCH_SIZE_BYTES
from records.batch_writer import build_batch
from records.compression import Compression
from records.errors import RecordError
from snapshot import DamagedFileError
from snapshot.framing import MAX_DECOMPRESSED_BYTES
from snapshot.stream import iter_file_batches
from tests.simulation.disk import Mode
from tests.snapshot.checkpoints import (
    PATH,
    TIME,
    VOTERS,
    closed,
    control_batch,
    data_batch,
    header_batch,
    new_disk,
    verified,
    written,
)

pytestmark = pytest.mark.slow

WHOLE = written(20, kraft_version=1, voters=VOTERS)


def read(data: bytes) -> None:
    """Nothing but a DamagedFileError may come out, and it must point into the file."""
    position = 0
    try:
        verified(data)
    except DamagedFileError as error:
        position = error.position
    assert 0 <= position <= len(data)


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=500))
def test_a_checkpoint_of_random_bytes_is_read_or_raises_a_record_error(data):
    read(data)


@settings(max_examples=500, deadline=None)
@given(
    edits=st.lists(
        st.tuples(st.integers(0, len(WHOLE) - 1), st.binary(max_size=12)), min_size=1, max_size=6
    ),
    cut=st.integers(0, len(WHOLE)),
    again=st.booleans(),
)
def test_a_damaged_checkpoint_is_read_or_raises_a_record_error(edits, cut, again):
    data = bytearray(WHOLE)
    for at, replacement in edits:
        data[at : at + len(replacement)] = replacement
    if again:  # bytes twice, as a fetch that repeats itself would leave them
        data[cut:cut] = data[:cut]
    read(bytes(data))


@settings(max_examples=500, deadline=None)
@given(
    at=st.integers(CRC_START, len(control_batch(VOTERS, base_offset=0)) - 1),
    replacement=st.binary(min_size=1, max_size=8),
    in_data=st.booleans(),
)
def test_a_damaged_checkpoint_batch_with_a_valid_checksum_is_read_or_raises_a_record_error(
    at, replacement, in_data
):
    """A peer may send what it likes and checksum it."""
    first = header_batch(VOTERS)
    batch = bytearray(data_batch(5, base_offset=2) if in_data else first)
    batch[at : at + len(replacement)] = replacement
    struct.pack_into(">I", batch, CRC_START - 4, crc32c(memoryview(batch)[CRC_START:]))
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    read(first + bytes(batch) if in_data else bytes(batch))


def test_reading_a_checkpoint_with_a_large_declared_batch_length_allocates_no_memory():
    header = bytearray(header_batch())
    struct.pack_into(">i", header, 8, MAX_BATCH_SIZE_BYTES - 12)
    tracemalloc.start()
    try:
        with pytest.raises(RecordError, match="exceeds the limit"):
            verified(bytes(header))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * 1024 * 1024


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.ZSTD, Compression.LZ4])
def test_the_checkpoint_reader_stops_decompressing_a_bomb_at_the_size_limit(codec):
    bomb = [(None, bytes(MAX_DECOMPRESSED_BYTES + 1), TIME, ())]
    batch = build_batch(bomb, base_offset=1, leader_epoch=3, compression=codec)
    assert len(batch) < 1024 * 1024
    with pytest.raises(DamagedFileError, match="expands to more than"):
        verified(closed(header_batch() + bytes(batch)))


@pytest.mark.parametrize("window_bytes", [1, 60, 61, 100, 1000])
def test_the_checkpoint_reader_yields_the_same_batches_with_any_read_window_size(window_bytes):
    disk = new_disk()
    disk.replace(PATH, WHOLE)
    file = disk.open(PATH, Mode.READ)
    batches = list(iter_file_batches(file, PATH, window_bytes=window_bytes))
    assert b"".join(batch.view for batch in batches) == WHOLE
    positions = [batch.position for batch in batches]
    assert positions == sorted(set(positions))
