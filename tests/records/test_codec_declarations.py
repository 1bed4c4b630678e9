"""What a declaration may say, what the catalogue of them must hold, and messages as values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, NamedTuple

import pytest

from records import control, metadata
from records.codegen.__main__ import main as show
from records.frame import (
    CONTROL_RECORDS,
    METADATA_RECORDS,
)
from records.metadata import FeatureLevelRecord, TopicRecord
from records.rpc import API, Request, Response
from records.rpc.base import CoordinatorRequest
from records.rpc.fetch import FetchRequest, FetchSnapshotResponse
from records.schema import ArrayOf, ControlRecord, Message, MetadataRecord, StructOf
from records.types import ZERO_UUID
from records.wire import (
    ALWAYS,
    Array,
    Int32,
    String,
    Versions,
    since,
    tag,
)


def test_every_record_class_has_a_docstring() -> None:
    for module in (metadata, control):
        for name, value in vars(module).items():
            if isinstance(value, type) and issubclass(value, Message):
                assert value.__doc__, name


def test_no_two_records_or_messages_share_a_number() -> None:
    for base, known in [
        (MetadataRecord, METADATA_RECORDS),
        (ControlRecord, CONTROL_RECORDS),
        (Request, API),
        (Response, API),
    ]:
        declared = [*base.__subclasses__(), *CoordinatorRequest.__subclasses__()]
        ours = {c for c in declared if issubclass(c, base) and c.__module__.startswith("records.")}
        numbers = sorted(cls.schema().key or 0 for cls in ours - {CoordinatorRequest})
        assert numbers == sorted(known), f"{base.__name__}: a number twice, or one left out"


def test_the_nested_structures_of_a_record_have_the_same_fields_at_every_version() -> None:
    # `lowest_version` looks no deeper; encoding would refuse the version it chose.
    def nested(cls: type[Message]) -> Iterator[type[Message]]:
        for field in cls.schema().fields:
            inner = field.type.element if isinstance(field.type, ArrayOf) else field.type
            if isinstance(inner, StructOf):
                yield inner.message
                yield from nested(inner.message)

    for record in METADATA_RECORDS.values():
        for inner in nested(record):
            assert all(field.versions == ALWAYS for field in inner.schema().fields), inner


def test_a_request_and_its_response_have_the_same_versions() -> None:
    for key, api in API.items():
        request, response = api.request.schema(), api.response.schema()
        assert request.versions == response.versions, key
        assert request.flexible == response.flexible, key


class Named(NamedTuple):
    """What a row may not hold."""

    name: String


def test_declaring_a_message_with_contradictory_fields_raises_an_error() -> None:
    class TwoTags(Message):
        one: Annotated[Int32, tag(0)] = 0
        two: Annotated[Int32, tag(0)] = 0

    class LateWithoutDefault(Message):
        late: Annotated[Int32, since(1)]

    class NotAWireType(Message):
        number: int = 0

    class TwoTypes(Message):
        either: Int32 | String | None = None

    class TextInARow(Message):
        rows: Array[Named] = ()

    declared: list[tuple[type[Message], str]] = [
        (TwoTags, "a tag is used twice"),
        (LateWithoutDefault, "needs a default"),
        (NotAWireType, "not a wire type"),
        (TwoTypes, "more than one type"),
        (TextInARow, "numbers and booleans only"),
    ]
    for cls, reason in declared:
        with pytest.raises(TypeError, match=reason):
            cls.schema()


def test_declaring_a_message_class_without_a_docstring_raises_an_error() -> None:
    with pytest.raises(TypeError, match="docstring"):
        type(Message)("Mute", (Message,), {"__qualname__": "Mute", "__module__": __name__})


def test_version_ranges_are_printed_in_kafkas_notation() -> None:
    assert [repr(Versions.parse(text)) for text in ("3", "1-3", "12+", "none")] == [
        "3", "1-3", "12+", "none",
    ]  # fmt: skip
    assert Versions.parse("1-5") & Versions.parse("3+") == Versions(3, 5)
    assert repr(Versions.parse("1-2") & Versions.parse("3+")) == "none"


def test_messages_with_equal_fields_are_equal_and_immutable() -> None:
    one, other = (
        FeatureLevelRecord(name="x", feature_level=1),
        TopicRecord(name="x", topic_id=ZERO_UUID),
    )
    assert one == FeatureLevelRecord(name="x", feature_level=1)
    assert one != other
    assert hash(one) == hash(FeatureLevelRecord(name="x", feature_level=1))
    with pytest.raises(AttributeError):
        one.name = "y"  # type: ignore[misc]
    with pytest.raises(TypeError):
        FeatureLevelRecord("x", 1)  # type: ignore[call-arg,misc]
    assert FetchRequest.schema().name == "FetchRequest"
    assert FetchSnapshotResponse.schema().key == 59


def test_the_repr_of_a_message_shows_its_fields_and_any_unknown_tagged_fields() -> None:
    record = FeatureLevelRecord(name="x", feature_level=7)
    assert repr(record) == "FeatureLevelRecord(name='x', feature_level=7)"
    tagged = FeatureLevelRecord(name="x", feature_level=7, unknown_tagged_fields=((9, b"y"),))
    assert repr(tagged).endswith("feature_level=7, unknown_tagged_fields=((9, b'y'),))")
    voter = control.VotersRecord.Voter.Endpoint(name="n", host="h", port=1)
    assert repr(voter) == "VotersRecord.Voter.Endpoint(name='n', host='h', port=1)"


def test_the_codegen_command_prints_the_generated_source(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show(["PartitionRecord", "2"])
    shown = capsys.readouterr().out
    assert "def decode(buf, pos, end):" in shown
    assert "def encode(message, w):" in shown
    for wrong in ([], ["PartitionRecord"], ["NoSuchRecord", "0"], ["TopicRecord", "x"]):
        with pytest.raises(SystemExit, match="usage"):
            show(wrong)
    with pytest.raises(SystemExit, match="TopicRecord has versions 0"):
        show(["TopicRecord", "1"])
