"""The rules of a declaration, one by one: defaults, nulls, versions, tags, and what is refused."""

from __future__ import annotations

import array
from typing import Annotated, NamedTuple
from uuid import UUID

import pytest

from records.codec import decode_message, encode_message, encode_parts
from records.errors import MalformedMessageError
from records.metadata import TopicRecord
from records.reference_decoder import reference_decode
from records.reference_encoder import reference_encode
from records.rpc.produce import ProduceRequest
from records.schema import Message
from records.types import ZERO_UUID
from records.wire import (
    IGNORABLE,
    Array,
    Bool,
    BufferChain,
    Bytes,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    Records,
    String,
    UInt16,
    UInt32,
    Uuid,
    between,
    nullable,
    since,
    tag,
    until,
)


class Inner(Message):
    """A structure inside `Sample`."""

    number: Int16 = 7
    later: Annotated[String, since(2), IGNORABLE] = "later"


class Cell(NamedTuple):
    """A row of `Sample`."""

    left: Int8
    right: UInt32


class Sample(Message, key=1, versions="0-3", flexible="2+"):
    """A field of each kind; versions 0 and 1 are written in the old encoding."""

    flag: Bool = False
    text: String = ""
    maybe_text: String | None = None
    raw: Bytes = b""
    batches: Records | None = None
    ratio: Float64 = 0.0
    numbers: Array[Int32] = ()
    maybe_ids: Annotated[Array[Uuid] | None, nullable("1+")] = ()
    cells: Array[Cell] = ()
    inner: Inner = Inner()
    maybe_inner: Inner | None = None
    inners: Array[Inner] = ()
    old: Annotated[Int32, until(1), IGNORABLE] = -1
    strict: Annotated[Int32, since(1)] = 5
    middle: Annotated[Int64, between(1, 2)] = -1
    tagged: Annotated[String | None, since(2), tag(3)] = None
    tagged_inner: Annotated[Inner, since(3), tag(0)] = Inner()
    port: Annotated[UInt16, since(3), tag(1), IGNORABLE] = 80


def test_a_message_in_the_old_encoding_has_its_golden_bytes() -> None:
    sample = Sample(text="é", numbers=(1, -1), cells=(Cell(left=-1, right=2**32 - 1),), old=9)
    assert encode_message(sample, 0) == bytes.fromhex(
        "00"  # flag
        "0002 c3a9"  # text: int16 bytes, then UTF-8
        "ffff"  # maybe_text: null
        "00000000"  # raw: int32 bytes
        "ffffffff"  # batches: null
        "0000000000000000"  # ratio
        "00000002 00000001 ffffffff"  # numbers: int32 count, then the elements
        "00000000"  # maybe_ids: empty
        "00000001 ff ffffffff"  # cells
        "0007"  # inner: its fields, nothing around them
        "ff"  # maybe_inner: null
        "00000000"  # inners
        "00000009"  # old
    )


def test_a_message_in_the_compact_encoding_has_its_golden_bytes() -> None:
    sample = Sample(
        flag=True,
        text="é",
        maybe_text="",
        raw=b"\x01\x02",
        batches=b"\x03",
        ratio=0.5,
        numbers=(1,),
        maybe_ids=None,
        cells=(Cell(left=1, right=2),),
        maybe_inner=Inner(number=8),
        inners=(Inner(later="x"),),
        tagged="t",
        tagged_inner=Inner(number=1),
        unknown_tagged_fields=((2, b"\xaa"), (300, b"\xbb\xcc")),
    )
    encoded = bytes.fromhex(
        "01"  # flag
        "03 c3a9"  # text: bytes + 1 as a varint, then UTF-8
        "01"  # maybe_text: empty, not null
        "03 0102"  # raw
        "02 03"  # batches
        "3fe0000000000000"  # ratio
        "02 00000001"  # numbers: count + 1
        "00"  # maybe_ids: null
        "02 01 00000002 00"  # cells: a row, with its own count of tagged fields
        "0007 06 6c61746572 00"  # inner: 7, "later", no tagged fields
        "01 0008 06 6c61746572 00"  # maybe_inner: present
        "02 0007 02 78 00"  # inners: one
        "00000005"  # strict
        "04"  # four tagged fields, by rising tag
        "00 09 0001 06 6c61746572 00"  # tagged_inner, of nine bytes
        "02 01 aa"  # an unknown one between the known
        "03 02 02 74"  # tagged
        "ac02 02 bbcc"  # an unknown one, tag 300
    )
    assert encode_message(sample, 3) == encoded == reference_encode(sample, 3)
    assert decode_message(Sample, encoded, 3) == sample


@pytest.mark.parametrize("version", range(4))
def test_default_values_survive_encoding_and_decoding_at_every_version(version: int) -> None:
    encoded = encode_message(Sample(), version)
    assert decode_message(Sample, encoded, version) == Sample()
    assert reference_encode(Sample(), version) == encoded


def test_a_field_that_a_version_lacks_decodes_to_its_default() -> None:
    assert decode_message(Sample, encode_message(Sample(strict=6), 3), 3).middle == -1
    assert decode_message(Sample, encode_message(Sample(old=4), 1), 1).old == 4


def test_encoding_at_a_version_omits_ignorable_fields_and_refuses_other_missing_fields() -> None:
    assert encode_message(Sample(old=4), 3) == encode_message(Sample(), 3)
    assert encode_message(Sample(inner=Inner(later="x")), 1) == encode_message(Sample(), 1)
    with pytest.raises(ValueError, match="Sample v0 cannot carry strict = 6: only in 1"):
        encode_message(Sample(strict=6), 0)
    with pytest.raises(ValueError, match="Sample v3 cannot carry middle = 0: only in 1-2"):
        encode_message(Sample(middle=0), 3)
    with pytest.raises(ValueError, match="tagged_inner"):
        encode_message(Sample(tagged_inner=Inner(number=1)), 2)


def test_the_codec_accepts_null_only_in_fields_declared_nullable() -> None:
    assert decode_message(Sample, encode_message(Sample(maybe_ids=None), 1), 1).maybe_ids is None
    with pytest.raises(ValueError, match="maybe_ids = None"):
        encode_message(Sample(maybe_ids=None), 0)
    at_version_1 = bytearray(encode_message(Sample(), 1))
    at_version_1[3:5] = b"\0\0"  # maybe_text: was null, is empty
    assert decode_message(Sample, bytes(at_version_1), 1).maybe_text == ""
    at_version_1[1:3] = b"\xff\xff"  # text: null
    with pytest.raises(MalformedMessageError, match=r"text at byte .*: null"):
        decode_message(Sample, bytes(at_version_1), 1)


REFUSED = [
    ({"port": 2**16, "strict": 5}, "port"),
    ({"port": -1}, "port"),
    ({"strict": 2**31}, "strict"),
    ({"strict": 1.5}, "strict"),
    ({"strict": None}, "strict"),
    ({"text": None}, "text"),
    ({"text": b"bytes"}, "text"),
    ({"text": "x" * 32768}, "text"),
    ({"text": "\ud800"}, "text"),
    ({"raw": "text"}, "raw"),
    ({"raw": 5}, "raw"),
    ({"raw": [1, 2]}, "raw"),
    ({"batches": "text"}, "batches"),
    ({"numbers": (2**31,)}, r"numbers\[0\]"),
    ({"numbers": (1, "x")}, r"numbers\[1\]"),
    ({"numbers": None}, "numbers"),
    ({"numbers": 5}, "numbers"),
    ({"maybe_ids": ("not an id",)}, r"maybe_ids\[0\]"),
    ({"cells": ((1, 2, 3),)}, r"cells\[0\]"),
    ({"cells": ((1, -1),)}, r"cells\[0\].right"),
    ({"cells": (7,)}, r"cells\[0\]"),
    ({"inner": None}, "inner"),
    ({"inner": Sample()}, "inner"),
    ({"inner": Inner(number=2**15)}, "inner.number"),
    ({"maybe_inner": 5}, "maybe_inner"),
    ({"inners": (Inner(), Inner(number=-(2**15) - 1))}, r"inners\[1\].number"),
    ({"inners": (None,)}, r"inners\[0\]"),
    ({"tagged": 5}, "tagged"),
    ({"unknown_tagged_fields": ((3, b""),), "tagged": "x"}, "unknown_tagged_fields"),
    ({"unknown_tagged_fields": ((7, b""), (7, b""))}, "unknown_tagged_fields"),
    ({"unknown_tagged_fields": ((-1, b""),)}, "unknown_tagged_fields"),
    ({"unknown_tagged_fields": ((2**32, b""),)}, "unknown_tagged_fields"),
    ({"unknown_tagged_fields": ((9, "text"),)}, "unknown_tagged_fields"),
]


@pytest.mark.parametrize(("values", "path"), REFUSED, ids=lambda x: repr(x)[:40])
def test_the_encoder_names_message_and_field_of_a_value_out_of_range(
    values: dict[str, object], path: str
) -> None:
    message = Sample(**values)  # type: ignore[arg-type]
    for encode in (encode_message, encode_parts):
        with pytest.raises(ValueError, match=f"^Sample v3 cannot carry {path} = "):
            encode(message, 3)


def test_the_encoder_refuses_tagged_fields_at_a_version_without_tagged_fields() -> None:
    message = Sample(unknown_tagged_fields=((9, b"x"),))
    with pytest.raises(ValueError, match="unknown_tagged_fields"):
        encode_message(message, 1)


def test_the_text_of_a_message_encoding_error_shortens_large_values() -> None:
    huge = ProduceRequest.TopicProduceData.PartitionProduceData(
        index=-(2**40), records=bytes(2**20)
    )
    topic = ProduceRequest.TopicProduceData(name="x", partition_data=(huge,))
    with pytest.raises(ValueError, match="ProduceRequest v9") as caught:
        encode_message(ProduceRequest(acks=1, timeout_ms=1, topic_data=(topic,)), 9)
    assert len(str(caught.value)) < 500


def test_a_memoryview_of_any_item_size_is_encoded_with_its_length_in_bytes() -> None:
    view = memoryview(array.array("i", [1, 2, 3]))
    encoded = encode_message(Sample(raw=view, batches=view), 3)  # type: ignore[arg-type]
    decoded = decode_message(Sample, encoded, 3)
    assert decoded.raw == view.tobytes()
    assert decoded.batches == view.tobytes()


def test_record_batches_in_a_decoded_message_are_views_of_the_message_buffer() -> None:
    batches = bytes(range(64))
    buffer = encode_message(Sample(batches=batches), 3)
    decoded = decode_message(Sample, memoryview(buffer), 3)
    assert isinstance(decoded.batches, memoryview)
    assert decoded.batches.obj is buffer


def test_large_record_batches_are_encoded_without_a_copy() -> None:
    batches = memoryview(bytes(2**20))
    assert any(part is batches for part in encode_parts(Sample(batches=batches), 3))


@pytest.mark.parametrize("version", [1, 3])
@pytest.mark.parametrize("size", [0, 62, 63, 64, 65, 126, 127, 128, 300, 16_383, 32_767])
def test_fields_survive_encoding_and_decoding_at_lengths_where_the_prefix_grows_by_a_byte(
    size: int, version: int
) -> None:
    sample = Sample(
        text="x" * size,
        maybe_text="y" * size,
        raw=b"r" * size,
        batches=b"b" * size,
        numbers=tuple(range(size)),
        maybe_ids=tuple(UUID(int=number) for number in range(size)),
        cells=tuple(Cell(left=1, right=number) for number in range(size)),
        inners=tuple(Inner(number=number) for number in range(size)),
    )
    encoded = encode_message(sample, version)
    assert encoded == reference_encode(sample, version)
    assert decode_message(Sample, encoded, version) == sample
    tagged = Sample(unknown_tagged_fields=tuple((10 + n, bytes(size)) for n in range(size % 200)))
    if version == 3:
        assert encode_message(tagged, 3) == reference_encode(tagged, 3)
        assert decode_message(Sample, encode_message(tagged, 3), 3) == tagged


@pytest.mark.parametrize("count", [1, 2, 3])
def test_decoding_refuses_an_array_row_that_contains_tagged_fields(count: int) -> None:
    rows = bytes([count + 1]) + bytes.fromhex("01 00000002 00") * count
    encoded = encode_message(Sample(cells=(Cell(left=1, right=2),) * count), 3)
    assert decode_message(Sample, encoded, 3).cells == (Cell(left=1, right=2),) * count
    damaged = encoded.replace(rows, rows[:-1] + b"\x01\x00")
    with pytest.raises(
        MalformedMessageError, match=rf"cells\[{count - 1}\] at .*: a row with tagged"
    ):
        decode_message(Sample, damaged, 3)


def test_the_decoder_refuses_unknown_tagged_fields_out_of_order_or_repeated() -> None:
    topic = encode_message(TopicRecord(name="x", topic_id=ZERO_UUID), 0)
    for tags in ("02 05 00 04 00", "02 05 00 05 00"):
        with pytest.raises(MalformedMessageError, match="after tag 5"):
            decode_message(TopicRecord, topic[:-1] + bytes.fromhex(tags), 0)


def test_the_decoder_refuses_known_tagged_fields_out_of_order_or_repeated() -> None:
    base = encode_message(Sample(), 3)[:-1]
    for tags in ("02 01 02 0050 01 02 0050", "02 03 02 02 74 01 02 0050", "02 05 00 01 02 0050"):
        with pytest.raises(MalformedMessageError, match="tags at byte"):
            decode_message(Sample, base + bytes.fromhex(tags), 3)


class Moved(Message, key=3, versions="0-2", flexible="1+"):
    """A field that became a tagged one in version 2, as upstream's schemas allow."""

    number: Annotated[Int16, tag(4, "2+")] = 9


def test_a_field_may_become_a_tagged_field_in_a_later_version() -> None:
    for version, encoded in [(0, "0007"), (1, "0007 00"), (2, "01 04 02 0007")]:
        assert encode_message(Moved(number=7), version) == bytes.fromhex(encoded)
        assert reference_encode(Moved(number=7), version) == bytes.fromhex(encoded)
        assert decode_message(Moved, bytes.fromhex(encoded), version) == Moved(number=7)
    assert encode_message(Moved(), 2) == b"\0"


def test_the_decoder_refuses_a_known_tagged_field_of_the_wrong_size() -> None:
    base = encode_message(Sample(), 3)[:-1]
    for tags in ("01 01 03 0050 00", "01 01 01 00", "01 03 03 02 74 00"):
        with pytest.raises(MalformedMessageError):
            decode_message(Sample, base + bytes.fromhex(tags), 3)


def test_a_tagged_field_with_its_default_written_out_decodes_to_the_default() -> None:
    base = encode_message(Sample(), 3)[:-1]
    assert decode_message(Sample, base + bytes.fromhex("01 01 02 0050"), 3) == Sample()


def test_a_nullable_structure_with_any_negative_marker_byte_decodes_to_null() -> None:
    absent = encode_message(Sample(), 3)
    at = absent.index(b"later\x00\xff") + 6
    for marker, inner in [(0x80, None), (0xFE, None), (0x7F, Inner()), (0x00, Inner())]:
        body = b"" if inner is None else encode_message(inner, 3)
        damaged = absent[:at] + bytes([marker]) + body + absent[at + 1 :]
        assert decode_message(Sample, damaged, 3) == Sample(maybe_inner=inner)
        assert reference_decode(Sample, memoryview(damaged), 3) == Sample(maybe_inner=inner)


class Numbers(Message, key=4, versions="0", flexible="none"):
    """Ends in an array, in the old encoding."""

    numbers: Array[Int32] = ()


def test_the_decoder_refuses_an_array_that_extends_past_the_end_of_its_message() -> None:
    encoded = encode_message(Numbers(numbers=(1, 2, 3)), 0)
    assert decode_message(Numbers, encoded, 0) == Numbers(numbers=(1, 2, 3))
    with pytest.raises(MalformedMessageError, match="3 elements of at least 4 bytes, 11 left"):
        decode_message(Numbers, encoded[:-1], 0)


class Nest(Message):
    """Holds a nullable structure, whose null takes one byte."""

    inner: Inner | None = None


class Nests(Message, key=2, versions="0", flexible="0+"):
    """An array whose elements may be smaller than the structure inside them."""

    items: Array[Nest] = ()


def test_an_array_of_null_structures_passes_the_minimum_size_check() -> None:
    nests = Nests(items=(Nest(), Nest(), Nest()))
    assert decode_message(Nests, encode_message(nests, 0), 0) == nests


@pytest.mark.parametrize("version", [3, 9])
def test_records_in_several_buffers_are_encoded_as_their_joined_bytes(version: int) -> None:
    def request(records: object) -> ProduceRequest:
        partition = ProduceRequest.TopicProduceData.PartitionProduceData(
            index=0,
            records=records,  # type: ignore[arg-type]
        )
        topic = ProduceRequest.TopicProduceData(name="t", partition_data=(partition,))
        return ProduceRequest(acks=1, timeout_ms=1, topic_data=(topic,))

    parts = [b"ab", memoryview(bytes(200))]
    chained, joined = request(BufferChain(parts)), request(b"ab" + bytes(200))
    assert encode_message(chained, version) == encode_message(joined, version)
    assert reference_encode(chained, version) == encode_message(joined, version)
    assert any(part is parts[1] for part in encode_parts(chained, version))
