"""The compiled parser never accepts what the parser in Python refuses, or reads otherwise."""

from __future__ import annotations

from random import Random

import pytest

from diskless.produce.validation import _timestamp_range
from records import native_batch
from records.batch import Batch, read_batch, records_of
from records.batch_writer import build_batch
from records.native_batch import read_timestamp_range
from tests.examples import examples, first_seed

NOW = 1_700_000_000_000


@pytest.fixture(autouse=True, scope="module")
def compiled_parser() -> None:
    native_batch.load()
    assert native_batch._loaded is not None, "aiokafka has no compiled parser here"


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


def parsed_in_python(
    batch: Batch, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> tuple[int, int] | None:
    with monkeypatch.context() as patched:
        patched.setattr(native_batch, "_loaded", None)
        try:
            return _timestamp_range(batch, memoryview(body))
        except (ValueError, IndexError):
            return None


@pytest.mark.parametrize("seed", range(first_seed(), first_seed() + examples(3)))
def test_the_compiled_batch_parser_agrees_with_python_on_damaged_records(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    accepted = refused = 0
    for _ in range(150):
        batch = random_batch(random)
        body = bytes(records_of(batch))
        for _ in range(10):
            data = damaged(random, body)
            fast = read_timestamp_range(batch.header, data)
            if fast is None:
                refused += 1
                continue
            accepted += 1
            assert fast == parsed_in_python(batch, data, monkeypatch), data.hex()
    assert min(accepted, refused) > 100


def record(*fields: bytes) -> bytes:
    body = b"".join(fields)
    return bytes([2 * len(body)]) + body


PLAIN = (b"\0", b"\0", b"\0", b"\x02k", b"\x02v", b"\0")


@pytest.mark.parametrize(
    "fields",
    {
        "attributes in two bytes": (b"\x80\0", *PLAIN[1:]),
        "an offset delta in two bytes": (*PLAIN[:2], b"\x80\0", *PLAIN[3:]),
        "a timestamp delta in ten bytes": (b"\0", b"\x80" * 9 + b"\0", *PLAIN[2:]),
        "a key length below -1": (*PLAIN[:3], b"\x09", *PLAIN[4:]),
        "a value length below -1": (*PLAIN[:4], b"\x09", b"\0"),
        "a header count beyond the record": (*PLAIN[:5], b"\xfe\x7f"),
        "a header whose key is not text": (*PLAIN[:5], b"\x02\x02\xff\x01"),
    }.items(),
    ids=lambda item: item[0],
)
def test_the_compiled_batch_parser_leaves_uncommonly_encoded_records_to_python(
    fields: tuple[str, tuple[bytes, ...]],
) -> None:
    plain = [record(*PLAIN[:2], bytes([2 * delta]), *PLAIN[3:]) for delta in range(6)]
    batch = read_batch(
        bytes(build_batch([(b"k", b"v", NOW, [])] * 6, base_offset=0, leader_epoch=-1))
    )
    assert read_timestamp_range(batch.header, b"".join(plain)) == (NOW, NOW)
    assert read_timestamp_range(batch.header, b"".join([record(*fields[1]), *plain[1:]])) is None


@pytest.mark.parametrize("base", [-1, 1 << 62, (1 << 63) - 1])
def test_the_compiled_batch_parser_leaves_timestamps_that_could_overflow_to_python(
    base: int,
) -> None:
    batch = read_batch(
        bytes(build_batch([(b"k", b"v", NOW, [])] * 6, base_offset=0, leader_epoch=-1))
    )
    header = batch.header._replace(base_timestamp=base)
    assert read_timestamp_range(header, bytes(records_of(batch))) is None
