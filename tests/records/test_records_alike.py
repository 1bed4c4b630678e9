"""Records of one length are accepted at once only if the loop accepts them, and are read alike."""

from __future__ import annotations

from random import Random

import pytest

from records import record_checks
from records.batch import Batch, read_batch, records_of
from records.batch_writer import build_batch
from records.record_checks import SLICE_RECORDS, check_records
from records.records_alike import FEWEST_ALIKE, OFFSET_DELTAS_END, check_alike
from tests.examples import examples, first_seed
from tests.records.test_record_checks import NOW, by_loop, damaged


def alike_batch(random: Random) -> Batch:
    key = random.choice([None, b"", b"k" * random.randrange(70)])
    value = random.choice([None, b"", b"v" * random.randrange(300)])
    latest = random.choice([1, 64, 64, 65])
    records = [
        (key, value, NOW + (index and random.randrange(latest)), [])
        for index in range(random.choice([1, 2, 4, 15, 64, 65, 70]))
    ]
    return read_batch(bytes(build_batch(records, base_offset=0, leader_epoch=-1)))


@pytest.mark.parametrize("seed", range(first_seed(), first_seed() + examples(3)))
def test_records_of_one_length_are_accepted_at_once_only_if_the_loop_accepts_them(
    seed: int,
) -> None:
    random = Random(seed)
    accepted = refused = wrong = 0
    for _ in range(150):
        batch = alike_batch(random)
        body, count = bytes(records_of(batch)), batch.header.record_count
        for _ in range(10):
            data = damaged(random, body)
            found, looped = check_alike(data, 0, 0, count), by_loop(data, count)
            if found is None:
                wrong, refused = wrong + (looped is None), refused + 1
            else:
                assert looped == found, data.hex()
                accepted += 1
    assert min(accepted, refused, wrong) > 100


@pytest.mark.parametrize("count", [4, 15, 64])
@pytest.mark.parametrize("key", [None, b"", b"k" * 63])
@pytest.mark.parametrize("value", [None, b"", b"v" * 63, b"v" * 64, b"v" * 8_000])
def test_usual_records_of_one_length_are_checked_at_once(
    count: int, key: bytes | None, value: bytes | None
) -> None:
    records = [(key, value, NOW + index % 64, []) for index in range(count)]
    batch = read_batch(bytes(build_batch(records, base_offset=0, leader_epoch=-1)))
    body = bytes(records_of(batch))
    assert check_alike(body, 0, 0, count) == (0, count - 1, len(body))
    for at in range(len(body)):
        if len(body) > 4_000 and at % 97:
            continue  # of long bodies, a part
        changed = body[:at] + bytes([body[at] ^ 1 << at % 8]) + body[at + 1 :]
        found = check_alike(changed, 0, 0, count)
        assert found is None or by_loop(changed, count) == found, at


WRONG_ALIKE = {
    "a negative record length": (b"\x11\0\0", b"\x02k\x02v\0"),
    "a key length below -1": (b"\x10\0\0", b"\x03k\x02v\0"),
    "a key length of two bytes, the key in it": (b"\x10\0\0", b"\x82\x00\x02v\0"),
    "a value length below -1": (b"\x10\0\0", b"\x02k\x03v\0"),
    "a value length of two bytes, below -1": (b"\x10\0\0", b"\x02k\x83\x00\0"),
    "a value length of three bytes, too long": (b"\x14\0\0", b"\x02k\x80\x80\x02v\0"),
    "a key length of two bytes, too long": (
        b"\x8e\x01\0\0",
        b"\x80\x05" + b"k" * 63 + b"\x02v\0",
    ),
    "a key that ends behind the record": (b"\x10\0\0", b"\x10k\x02v\0"),
    "a timestamp delta cut off": (b"\x0e\0\x80", b"\x02k\x02\0"),
}


@pytest.mark.parametrize(("before", "after"), WRONG_ALIKE.values(), ids=WRONG_ALIKE)
def test_records_of_one_length_that_are_all_wrong_alike_are_not_accepted(
    before: bytes, after: bytes
) -> None:
    data = b"".join(before + bytes([2 * delta]) + after for delta in range(4))
    assert by_loop(data, 4) is None
    assert check_alike(data, 0, 0, 4) is None


def alike_records(count: int, size: int = 3) -> Batch:
    records = [(b"key", b"v" * size, NOW + index % 64, []) for index in range(count)]
    return read_batch(bytes(build_batch(records, base_offset=0, leader_epoch=-1)))


@pytest.mark.parametrize("count", [65, 66, 8_192, 8_193, OFFSET_DELTAS_END])
def test_records_with_longer_offset_deltas_are_checked_in_groups(count: int) -> None:
    random = Random(count)
    body = bytes(records_of(alike_records(count)))
    assert check_alike(body, 0, 0, count) == (0, 63, len(body))
    step = len(body) // count
    starts = [0, 63 * step, 64 * step, len(body) - 2 * step - 3]
    for at in {
        min(begin + offset, len(body) - 1) for begin in starts for offset in range(step + 2)
    }:
        changed = body[:at] + bytes([body[at] ^ 1 << random.randrange(8)]) + body[at + 1 :]
        found = check_alike(changed, 0, 0, count)
        assert found is None or by_loop(changed, count) == found, at


def test_one_more_offset_delta_than_the_tables_have_is_not_checked_at_once() -> None:
    body = bytes(records_of(alike_records(OFFSET_DELTAS_END + 1)))
    assert check_alike(body, 0, 0, OFFSET_DELTAS_END + 1) is None


@pytest.mark.parametrize(("first", "stop"), [(10, 20), (60, 70), (100, 300), (8_100, 8_300)])
def test_a_part_of_the_records_is_checked_at_once_from_its_position_on(
    first: int, stop: int
) -> None:
    body = bytes(records_of(alike_records(9_000)))
    _, _, begin = check_alike(body, 0, 0, first) or (0, 0, 0)
    _, _, end = check_alike(body, 0, 0, stop) or (0, 0, 0)
    found = check_alike(body, begin, first, stop)
    assert found is not None
    assert found[2] == end
    assert check_alike(body, begin, first + 1, stop + 1) is None
    assert check_alike(body[: end - 1], begin, first, stop) is None


def test_records_of_one_length_need_neither_loop_nor_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("checked again")

    monkeypatch.setattr(record_checks, "_check_each", fail)
    monkeypatch.setattr(record_checks, "_check_columns", fail)
    for count in (FEWEST_ALIKE, 15, 1_000, SLICE_RECORDS):
        batch = alike_records(count)
        checked = check_records(batch, records_of(batch))
        assert checked == (NOW, NOW + min(count - 1, 63))


def test_bytes_after_records_of_one_length_are_refused() -> None:
    batch = alike_records(15)
    with pytest.raises(ValueError, match="3 bytes after the last record"):
        check_records(batch, memoryview(bytes(records_of(batch)) + b"abc"))
