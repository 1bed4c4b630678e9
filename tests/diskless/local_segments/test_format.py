"""The bytes of `.runs` files. docs/design/local-segments.md#files."""

from __future__ import annotations

from uuid import UUID

import pytest

from diskless.fetch.local_segments.format import (
    CATCH_UP,
    ENTRY_BYTES,
    HEADER_BYTES,
    Entry,
    Header,
    TopicPartition,
    decode_entries,
    decode_header,
    encode_entry,
    encode_header,
    entry_at,
    identify,
    owner_of,
    parse_directory_name,
    parse_segment_name,
)
from diskless.fetch.runs_reader import Run

PARTITION = TopicPartition(UUID(int=7), 3)
OWNER = bytes(range(16))
ENTRY = Entry(1_234, 1_240, 0, 100, 0xCAFE, b"i" * 16)
RUN = Run("esker/00/17", 512, 100, 1_234, 1_240, 0, -1)


def test_a_header_has_magic_version_kind_time_owner_and_a_checksum() -> None:
    header = Header(CATCH_UP, 1_700_000_000_000, OWNER)
    encoded = encode_header(header)
    assert encoded == bytes.fromhex(
        "45534b455252554e"  # ESKERRUN
        "0001"  # version
        "0001"  # kind: catch-up
        "0000018bcfe56800"  # created, ms since 1970
        "000102030405060708090a0b0c0d0e0f"  # owner
        "dc1cdc0a"  # CRC-32C
    )
    assert len(encoded) == HEADER_BYTES
    assert decode_header(encoded) == header


def test_an_entry_has_offsets_position_size_checksum_and_identity_under_a_checksum() -> None:
    encoded = encode_entry(ENTRY, OWNER)
    assert encoded == bytes.fromhex(
        "00000000000004d2"  # first offset
        "00000000000004d8"  # last offset
        "0000000000000000"  # position in the .log
        "00000064"  # size
        "0000cafe"  # CRC-32C of the range
        "69696969696969696969696969696969"  # identity of the run
        "e4d9f370"  # CRC-32C of the owner and the fields before
    )
    assert len(encoded) == ENTRY_BYTES
    assert entry_at(encoded, 0) == ENTRY


@pytest.mark.parametrize("position", range(HEADER_BYTES))
def test_a_header_with_a_flipped_bit_is_no_header(position: int) -> None:
    damaged = bytearray(encode_header(Header(0, 1, OWNER)))
    damaged[position] ^= 0x10
    assert decode_header(damaged) is None
    assert decode_header(damaged[:position]) is None


def _three() -> bytes:
    entries = [
        Entry(10, 12, 0, 50, 1, b"a" * 16),
        Entry(13, 13, 50, 20, 2, b"a" * 16),
        Entry(40, 49, 70, 30, 3, b"b" * 16),  # behind a gap
    ]
    return b"".join(encode_entry(entry, OWNER) for entry in entries)


def test_entries_are_read_up_to_a_torn_one_at_each_length() -> None:
    data = _three()
    for size in range(len(data) + 1):
        whole = size // ENTRY_BYTES * ENTRY_BYTES
        assert decode_entries(data[:size], OWNER, 1_000) == data[:whole]


def test_entries_end_before_a_flipped_bit() -> None:
    data = _three()
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1
        sound = position // ENTRY_BYTES * ENTRY_BYTES
        assert decode_entries(damaged, OWNER, 1_000) == data[:sound]


def test_entries_of_bytes_that_the_log_does_not_have_are_left_out() -> None:
    assert decode_entries(_three(), OWNER, 100) == _three()
    assert decode_entries(_three(), OWNER, 99) == _three()[: 2 * ENTRY_BYTES]
    assert decode_entries(_three(), OWNER, 0) == b""


def test_entries_of_another_owner_or_out_of_order_are_left_out() -> None:
    assert decode_entries(_three(), bytes(16), 1_000) == b""
    first = encode_entry(Entry(10, 12, 0, 50, 1, b"a" * 16), OWNER)
    for entry in (
        Entry(12, 13, 50, 20, 2, b"a" * 16),  # overlaps in offsets
        Entry(13, 12, 50, 20, 2, b"a" * 16),  # ends before it begins
        Entry(13, 14, 49, 20, 2, b"a" * 16),  # overlaps in bytes
    ):
        assert decode_entries(first + encode_entry(entry, OWNER), OWNER, 1_000) == first


@pytest.mark.parametrize(
    "change",
    [
        {"object_key": "esker/00/18"}, {"byte_offset": 513}, {"size_bytes": 99},
        {"base_offset": 1_233}, {"last_offset": 1_241}, {"timestamp_type": 1}, {"append_time": 5},
        {"object_format": 2}, {"control": b"marker"},
    ],
)  # fmt: skip
def test_runs_that_differ_in_anything_their_bytes_depend_on_have_other_identities(change) -> None:
    assert identify(RUN) == identify(Run(*RUN))
    assert identify(RUN._replace(**change)) != identify(RUN)


def test_the_greatest_timestamp_of_a_run_is_no_part_of_its_identity() -> None:
    assert identify(RUN._replace(max_timestamp=9)) == identify(RUN)


def test_an_owner_names_cluster_topic_partition_and_base_offset() -> None:
    owners = {
        owner_of(cluster, TopicPartition(UUID(int=topic), partition), offset)
        for cluster in ("a", "b")
        for topic in (1, 2)
        for partition in (0, 1)
        for offset in (0, 1)
    }
    assert len(owners) == 16


def test_only_names_that_are_written_are_read() -> None:
    assert parse_directory_name(PARTITION.directory_name) == PARTITION
    assert parse_segment_name("00000000000000001234.log") == 1_234
    for name in (
        "__cluster_metadata-0",
        "AAAAAAAAAAAAAAAAAAAABw-03",
        "AAAAAAAAAAAAAAAAAAAABw-",
        "x",
    ):
        assert parse_directory_name(name) is None
    for name in ("1234.log", "00000000000000001234.index", "00000000000000001234.log.old"):
        assert parse_segment_name(name) is None
