"""Records checked in columns and one by one: the same are accepted, and read alike."""

from __future__ import annotations

from random import Random

import pytest

from records import record_checks
from records.batch import Batch, read_batch, records_of
from records.batch_writer import build_batch
from records.record_checks import (
    FEW_RECORDS,
    SLICE_RECORDS,
    _check_each,
    check_records,
    load,
)
from records.record_columns import MOST_HEADERS, check_columns
from records.varint import encode_varint
from tests.examples import examples, first_seed

NOW = 1_700_000_000_000


@pytest.fixture(autouse=True, scope="module")
def loaded() -> None:
    load()


def random_batch(random: Random) -> Batch:
    records = [
        (
            random.choice([None, b"", b"k" * random.randrange(200)]),
            random.choice([None, b"", b"v" * random.randrange(300)]),
            NOW + random.choice([0, 1, -5, 10**6, -(10**9)]),
            [
                (random.choice(["", "h", "ä" * 5]), random.choice([None, b"", b"x"]))
                for _ in range(random.choice([0, 0, 1, 3]))
            ],
        )
        for _ in range(random.randrange(1, 12))
    ]
    return read_batch(bytes(build_batch(records, base_offset=0, leader_epoch=-1)))


def damaged(random: Random, body: bytes) -> bytes:
    data = bytearray(body)
    for _ in range(random.choice([0, 1, 1, 2, 4])):
        at = random.randrange(len(data)) if data else 0
        kind = random.random()
        if kind < 0.5 and data:
            data[at] = random.randrange(256)
        elif kind < 0.65:
            del data[at : at + 1]
        elif kind < 0.8:
            data.insert(at, random.choice([0, 0x80, 0xFF, 1]))
        elif kind < 0.9:
            del data[at:]
        else:
            data += bytes(random.randrange(5))
    return bytes(data)


def by_loop(data: bytes, count: int) -> tuple[int, int, int] | None:
    try:
        return _check_each(data, 0, 0, count)
    except (ValueError, IndexError):
        return None


@pytest.mark.parametrize("seed", range(first_seed(), first_seed() + examples(3)))
def test_records_checked_in_columns_are_those_that_the_loop_accepts(seed: int) -> None:
    random = Random(seed)
    accepted = refused = 0
    for _ in range(150):
        batch = random_batch(random)
        body, count = bytes(records_of(batch)), batch.header.record_count
        for _ in range(10):
            data = damaged(random, body)
            found = check_columns(data, 0, 0, count)
            assert found == by_loop(data, count), data.hex()
            accepted, refused = accepted + bool(found), refused + (not found)
    assert min(accepted, refused) > 100


def record(*fields: bytes) -> bytes:
    body = b"".join(fields)
    return bytes([2 * len(body)]) + body


PLAIN = (b"\0", b"\0", b"\0", b"\x02k", b"\x02v", b"\0")
HEADER = b"\x02h\x01"
WITH_HEADER = (*PLAIN[:5], b"\x02", HEADER)
MALFORMED = {
    "attributes in two bytes": (b"\x80\0", *PLAIN[1:]),
    "a key length below -1": (*PLAIN[:3], b"\x09", *PLAIN[4:]),
    "a value length below -1": (*PLAIN[:4], b"\x09", b"\0"),
    "a key as long as the record": (*PLAIN[:3], b"\x06k", *PLAIN[4:]),
    "a timestamp delta of 70 bits": (b"\0", b"\xff" * 9 + b"\x7f", *PLAIN[2:]),
    "a header count beyond the record": (*PLAIN[:5], b"\xfe\x7f"),
    "a negative header count": (*PLAIN[:5], b"\x01"),
    "no header where one is counted": (*PLAIN[:5], b"\x02"),
    "a header that nothing counts": (*PLAIN[:5], b"\0", HEADER),
    "a header without a key": (*PLAIN[:5], b"\x02", b"\x01", b"\x01"),
    "a header's value length below -1": (*PLAIN[:5], b"\x02", b"\x02h", b"\x03"),
    "a header that ends behind its record": (*PLAIN[:5], b"\x02", b"\x02h", b"\x04v"),
    "a byte after the headers": (*PLAIN[:5], b"\x02", HEADER, b"\0"),
}
SOUND = {
    "an offset delta in two bytes": (*PLAIN[:2], b"\x80\0", *PLAIN[3:]),
    "a timestamp delta in ten bytes": (b"\0", b"\x80" * 9 + b"\0", *PLAIN[2:]),
    "a header whose key is not text": (*PLAIN[:5], b"\x02\x02\xff\x01"),
    "a header without a value": (*PLAIN[:5], b"\x02", HEADER),
    "most headers": (*PLAIN[:5], bytes([2 * MOST_HEADERS]), HEADER * MOST_HEADERS),
}


def with_first(fields: tuple[bytes, ...], others: tuple[bytes, ...] = PLAIN) -> bytes:
    rest = [record(*others[:2], bytes([2 * delta]), *others[3:]) for delta in range(1, 6)]
    return b"".join((record(*fields), *rest))


@pytest.mark.parametrize("fault", MALFORMED)
def test_malformed_records_are_refused_in_columns_and_by_the_loop(fault: str) -> None:
    for others in (PLAIN, WITH_HEADER):
        data = with_first(MALFORMED[fault], others)
        assert check_columns(data, 0, 0, 6) is None
        assert by_loop(data, 6) is None


@pytest.mark.parametrize("kind", SOUND)
def test_uncommonly_encoded_records_are_accepted_in_columns_and_by_the_loop(kind: str) -> None:
    data = with_first(SOUND[kind])
    assert check_columns(data, 0, 0, 6) == by_loop(data, 6) == (0, 0, len(data))


def test_records_with_many_headers_are_left_to_the_loop() -> None:
    count = MOST_HEADERS + 1
    data = with_first((*PLAIN[:5], bytes([2 * count]), HEADER * count))
    assert check_columns(data, 0, 0, 6) is None
    assert by_loop(data, 6) == (0, 0, len(data))


@pytest.mark.parametrize("base", [0, NOW, 1 << 62, (1 << 63) - 1])
def test_record_timestamps_beyond_64_bits_are_returned_as_they_are(base: int) -> None:
    count = FEW_RECORDS
    rows = [(b"k", b"v", NOW + index, []) for index in range(count)]
    batch = read_batch(bytes(build_batch(rows, base_offset=0, leader_epoch=-1)))
    moved = batch._replace(header=batch.header._replace(base_timestamp=base))
    body = records_of(batch)
    assert check_columns(bytes(body), 0, 0, count) is not None
    assert check_records(moved, body) == (base, base + count - 1)


@pytest.mark.parametrize("fault", MALFORMED)
def test_a_malformed_record_in_a_later_slice_is_refused(fault: str) -> None:
    """The slice is large enough for columns; the loop's error is the one that is raised."""
    count = SLICE_RECORDS + FEW_RECORDS
    fields = MALFORMED[fault]
    delta = encode_varint(count - 1)
    rows = [(b"k", b"v", NOW, [])] * count
    batch = read_batch(bytes(build_batch(rows, base_offset=0, leader_epoch=-1)))
    body = bytes(records_of(batch))
    last = record(*PLAIN[:2], delta, *PLAIN[3:])
    assert body.endswith(last)
    spoilt = body.removesuffix(last) + record(*fields[:2], delta, *fields[3:])
    with pytest.raises((ValueError, IndexError)):
        check_records(batch, memoryview(spoilt))


def test_a_large_batch_is_checked_in_columns_once_numpy_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [(b"k", b"v", NOW + index, []) for index in range(FEW_RECORDS)]
    batch = read_batch(bytes(build_batch(rows, base_offset=0, leader_epoch=-1)))
    monkeypatch.setattr(record_checks, "_check_each", lambda *_: pytest.fail("the loop is used"))
    assert check_records(batch, records_of(batch)) == (NOW, NOW + FEW_RECORDS - 1)
