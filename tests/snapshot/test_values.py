"""The fast way to a batch's values says what the slow way says, of any bytes."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from records.batch import CRC_START, iter_records, read_batch
from records.batch_writer import build_batch, build_value_batch
from records.compression import Compression
from records.errors import RecordError
from snapshot.reader import strangeness
from snapshot.values import iter_values

VALUES = st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=150)


def slowly(batch) -> list[bytes] | None:
    """None where the slow way finds damage, or what no checkpoint holds."""
    try:
        records = list(iter_records(batch))
    except RecordError:
        return None
    if any(strangeness(batch, record) for record in records):
        return None
    return [bytes(record.value) for record in records]


def quickly(batch) -> list[bytes] | None:
    try:
        return list(iter_values(batch))
    except RecordError:
        return None


@settings(deadline=None)
@given(values=VALUES, codec=st.sampled_from(list(Compression)))
def test_iter_values_yields_the_values_of_an_encoded_batch(values, codec):
    batch = build_value_batch(values, base_offset=9, leader_epoch=1, timestamp=5, compression=codec)
    assert quickly(read_batch(batch)) == values


@settings(max_examples=400, deadline=None)
@given(values=VALUES, data=st.data())
def test_the_fast_value_reader_detects_the_same_damage_as_the_general_reader(values, data):
    batch = build_value_batch(values, base_offset=0, leader_epoch=1, timestamp=5)
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(61, len(batch) - 1))
        batch[position] = data.draw(st.integers(0, 255))
    batch[17:21] = crc32c(bytes(batch[CRC_START:])).to_bytes(4, "big")
    assert quickly(read_batch(batch)) == slowly(read_batch(batch))


@pytest.mark.parametrize(
    "record",
    [
        (b"key", b"value", 5, ()),
        (None, None, 5, ()),
        (None, b"", 5, ()),
        (None, b"value", 6, ()),
        (None, b"value", 5, [("name", b"x")]),
    ],
    ids=["a-key", "no-value", "an-empty-value", "another-time", "a-header"],
)
def test_iter_values_refuses_records_that_cannot_be_in_a_checkpoint(record):
    batch = build_batch(
        [(None, b"fine", 5, ()), record, (None, b"fine", 5, ())], base_offset=0, leader_epoch=1
    )
    assert quickly(read_batch(batch)) is None
