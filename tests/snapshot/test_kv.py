"""The key-value state reads plain batches in a short way, and all others by the general reader."""

from __future__ import annotations

from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from records.batch import Batch, read_batch
from records.batch_writer import build_batch
from snapshot import kv
from snapshot.kv import KeyValueMachine
from tests.examples import examples


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """A sound batch of one or two records, or one with bytes replaced under a new checksum."""
    records = draw(
        st.lists(
            st.tuples(
                st.none() | st.binary(max_size=3) | st.binary(min_size=60, max_size=70),
                st.none() | st.binary(max_size=3) | st.binary(min_size=60, max_size=130),
                st.integers(0, 2),
                st.lists(st.tuples(st.text(max_size=2), st.none()), max_size=1),
            ),
            min_size=1,
            max_size=2,
        )
    )
    data = build_batch(records, base_offset=0, leader_epoch=0)
    for _ in range(draw(st.integers(0, 2))):
        data[draw(st.integers(61, len(data) - 1))] = draw(st.integers(0, 255))
    data[17:21] = crc32c(memoryview(data)[21:]).to_bytes(4, "big")
    return read_batch(data)


@settings(max_examples=examples(500), deadline=None)
@given(batch=batches())
def test_plain_records_are_read_as_the_general_reader_reads_them(batch):
    """Mutants: a length is not compared with the end, or its sign is left out."""
    plain = kv._plain_pair(batch)
    assert plain is None or [plain] == kv._pairs(batch)


def test_a_record_of_one_key_and_value_is_read_in_the_short_way():
    for value in (b"", b"x", b"x" * 63, b"x" * 64, b"x" * 8_000):
        batch = read_batch(build_batch([(b"k", value, 7, ())], base_offset=0, leader_epoch=0))
        assert kv._plain_pair(batch) == (b"k", value)


def test_a_machine_counts_damaged_batches_and_goes_on_after_them():
    damaged = build_batch([(b"a", b"1", 0, ())], base_offset=0, leader_epoch=1)
    damaged[61] ^= 2  # the record's length
    damaged[17:21] = crc32c(memoryview(damaged)[21:]).to_bytes(4, "big")
    sound = build_batch([(b"b", b"2", 0, ())], base_offset=1, leader_epoch=1)
    machine = KeyValueMachine()
    machine.apply([read_batch(damaged), read_batch(sound)])
    assert (machine.damaged_batches, machine.get(b"a"), machine.get(b"b")) == (1, None, b"2")
    assert machine.applied == (2, 1)
