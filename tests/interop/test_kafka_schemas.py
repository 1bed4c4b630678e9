"""Our declarations say what the JSON schemas in Kafka's jars say, field by field.

Where they deliberately say more (the seed KIPs' extensions,
docs/design/numbers.md#tagged-fields-where-upstream-has-no-room), `OURS` has the exact fields, and
no others pass. Where we serve fewer versions than upstream, `FEWER_VERSIONS` says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pytest

from records.frame import CONTROL_RECORDS, METADATA_RECORDS
from records.rpc import API
from records.schema import ArrayOf, Field, Message, RowOf, StructOf, WireType, zero
from records.wire import ALWAYS, NEVER, Fixed, Sized, Versions
from tests.interop.kafka_schemas import Schema

FIRST_PRIVATE_NUMBER: Final = 1000

OURS: Final = {
    "PartitionRecord.StartOffset": "KIP-1114: of the active chunk, since version 3",
    "PartitionRecord.StartTimestamp": "KIP-1114, since version 3",
    "PartitionChangeRecord.StartOffset": "KIP-1114: of the new active chunk, since version 3",
    "PartitionChangeRecord.StartTimestamp": "KIP-1114, since version 3",
    "ProducerIdsRecord.BlockTimeMs": "when the block was handed out",
    "MetadataResponse.Topics.Partitions.StartOffset": "KIP-1114: of the first chunk",
    "MetadataResponse.Topics.Partitions.Chunks": "KIP-1114",
    "FetchRequest.Topics.Partitions.ArchivedOffset": "what a running archive has kept",
    "FetchRequest.WallClockMs": "of the sender, by which a held clock may be believed",
    "FetchRequest.Topics.Partitions.Floor": "up to where the sender held all that was committed",
    "BrokerRegistrationRequest.UnreadyReason": "why clients should be sent to other brokers",
    "BrokerHeartbeatRequest.UnreadyReason": "why clients should be sent to other brokers",
    "BrokerHeartbeatResponse.WallClockMs": "the controller's wall clock",
    "EnvelopeRequest.ClientRequestVersion": "of the request as the client sent it",
    "RegisterBrokerRecord.UnpreferredReason": "why clients are sent to other brokers",
    "BrokerRegistrationChangeRecord.UnpreferredReason": "the same, if it has changed",
    "SnapshotHeaderRecord.Epochs": "first offsets of the newest epochs of the log it covers",
    "SnapshotFooterRecord.RecordCount": "how many records precede the footer",
    "SnapshotFooterRecord.ContentCrc": "of every byte before the footer's batch",
}
"""Fields that upstream does not have."""

FIRST_PRIVATE_TAG: Final = 1000

MORE_VERSIONS: Final = {"PartitionRecord": "0-3", "PartitionChangeRecord": "0-3"}
"""Messages that KIP-1114 gives a version which upstream does not have."""

FEWER_VERSIONS: Final[dict[str, str]] = {}
"""Messages of which we declare a part of upstream's versions."""


def _declared() -> dict[str, type[Message]]:
    records = [*METADATA_RECORDS.values(), *CONTROL_RECORDS.values()]
    messages: list[type[Message]] = [*records]
    for api in API.values():
        messages += [api.request, api.response]
    return {cls.__name__: cls for cls in messages if (cls.schema().key or 0) < FIRST_PRIVATE_NUMBER}


DECLARED: Final = _declared()


@dataclass(frozen=True, slots=True)
class Said:
    """What one side says of a field, in a form that both sides can be brought to."""

    type: str
    versions: frozenset[int]
    nullable: frozenset[int]
    tag: int | None
    tagged: frozenset[int]
    default: Any
    ignorable: bool  # where it matters: some version lacks the field


def _numbers(versions: Versions, within: frozenset[int]) -> frozenset[int]:
    return frozenset(version for version in within if version in versions)


def describe_ours(cls: type[Message]) -> dict[str, Said]:
    """Every field of a declaration by its path, nested ones included."""
    schema = cls.schema()
    valid = frozenset(range(schema.versions.first, schema.versions.last + 1))
    found: dict[str, Said] = {}

    def walk(path: str, fields: tuple[Field, ...], within: frozenset[int]) -> None:
        for field in fields:
            here = f"{path}.{field.wire_name}"
            present = _numbers(field.versions, within)
            if not present:
                continue
            found[here] = Said(
                _our_type(field.type),
                present,
                _numbers(field.nullable, present),
                field.tag,
                _numbers(field.tagged & schema.flexible, present),
                field.default if not isinstance(field.default, Message) else None,
                field.ignorable and present != valid,
            )
            match _innermost(field.type):
                case StructOf(message):
                    walk(here, message.schema().fields, present)
                case RowOf() as row:
                    walk(here, _row_fields(row), present)

    walk(schema.name, schema.fields, valid)
    return found


def _innermost(wire_type: WireType) -> WireType:
    return wire_type.element if isinstance(wire_type, ArrayOf) else wire_type


def _row_fields(row: RowOf) -> tuple[Field, ...]:
    return tuple(
        Field(
            name=name,
            type=column,
            versions=ALWAYS,
            nullable=NEVER,
            tag=None,
            tagged=NEVER,
            default=zero(column),
            required=True,
            ignorable=False,
        )
        for name, column in row.columns
    )


def _our_type(wire_type: WireType) -> str:
    match wire_type:
        case ArrayOf(element):
            return "[]" + _our_type(element)
        case Fixed() | Sized():
            return wire_type.name
        case _:
            return "struct"


def describe_theirs(schema: Schema, valid: frozenset[int]) -> dict[str, Said]:
    """The same of an upstream schema, as far as the versions in `valid` go."""
    structs = {struct["name"]: struct["fields"] for struct in schema.get("commonStructs", ())}
    flexible = Versions.parse(schema["flexibleVersions"])
    found: dict[str, Said] = {}

    def walk(path: str, fields: list[Schema], within: frozenset[int]) -> None:
        for field in fields:
            present = _numbers(Versions.parse(field.get("versions", "0+")), within)
            if not present:
                continue
            name = field["name"]  # a few begin with a small letter, which no generator minds
            here = f"{path}.{name[:1].upper()}{name[1:]}"
            tagged = Versions.parse(field.get("taggedVersions", "none")) & flexible
            element = field["type"].removeprefix("[]")
            is_struct = element[:1].isupper()
            kind = field["type"].replace(element, "struct") if is_struct else field["type"]
            found[here] = Said(
                kind,
                present,
                _numbers(Versions.parse(field.get("nullableVersions", "none")), present),
                field.get("tag"),
                _numbers(tagged, present),
                _their_default(kind, field.get("default")),
                field.get("ignorable", False) and present != valid,
            )
            if is_struct:
                walk(here, field.get("fields") or structs[element], present)

    walk(schema["name"], schema["fields"], valid)
    return found


def _their_default(kind: str, default: Any) -> Any:
    if default == "null" or kind == "struct":
        return None
    if kind.startswith("[]"):
        return ()
    if kind in ("bytes", "records"):
        return b""
    if kind == "string":
        return default or ""
    if kind == "bool":
        return str(default).lower() == "true"
    if kind == "float64":
        return float(default or 0)
    if kind == "uuid":
        return zero(Fixed("uuid", "16s", 16))
    return int(str(default), 0) if default not in (None, "") else 0


def _plain_order(said: dict[str, Said], version: int) -> list[str]:
    return [p for p, s in said.items() if version in s.versions and version not in s.tagged]


@pytest.mark.java
@pytest.mark.parametrize("name", sorted(DECLARED))
def test_each_message_declaration_equals_kafkas_schema(
    name: str, upstream_schemas: dict[str, Schema]
) -> None:
    cls, theirs = DECLARED[name], upstream_schemas[name]
    ours = cls.schema()
    valid = Versions.parse(theirs["validVersions"])
    expected = FEWER_VERSIONS.get(name) or MORE_VERSIONS.get(name) or repr(valid)
    assert repr(ours.versions) == expected, f"{name}: upstream has {valid}"
    assert ours.key == theirs.get("apiKey", ours.key)
    shared = valid & ours.versions
    numbers = frozenset(range(shared.first, shared.last + 1))
    flexible = _numbers(Versions.parse(theirs["flexibleVersions"]), numbers)
    assert _numbers(ours.flexible, numbers) == flexible

    described = describe_ours(cls)
    upstream = describe_theirs(theirs, numbers)
    extra = {path for path in described if any(f"{path}.".startswith(f"{o}.") for o in OURS)}
    mine = {path: said for path, said in described.items() if path not in extra}
    if ours.versions.last > shared.last:
        mine = {path: _without(said, ours.versions.last) for path, said in mine.items()}
    assert mine == upstream
    for version in sorted(numbers):
        assert _plain_order(mine, version) == _plain_order(upstream, version), version


def _without(said: Said, version: int) -> Said:
    gone = {version}
    return Said(
        said.type,
        said.versions - gone,
        said.nullable - gone,
        said.tag,
        said.tagged - gone,
        said.default,
        said.ignorable,
    )


@pytest.mark.java
def test_every_metadata_record_of_kafka_is_declared(upstream_schemas: dict[str, Schema]) -> None:
    theirs = {
        schema["apiKey"]: name
        for name, schema in upstream_schemas.items()
        if schema["type"] == "metadata"
    }
    ours = {key: cls.__name__ for key, cls in METADATA_RECORDS.items()}
    assert {key: ours.get(key) for key in theirs} == theirs


def test_a_java_reader_can_skip_every_esker_extension() -> None:
    """It is a tagged field with a number of ours, or in a version that upstream does not have."""
    described = {
        path: said for cls in DECLARED.values() for path, said in describe_ours(cls).items()
    }
    for path in OURS:
        said, message = described[path], path.partition(".")[0]
        private = said.tag is not None and said.tag >= FIRST_PRIVATE_TAG
        in_a_version_of_ours = message in MORE_VERSIONS and min(said.versions) == max(said.versions)
        assert said.tagged == said.versions, path
        assert private or in_a_version_of_ours, path


def test_every_listed_esker_extension_exists_in_a_declared_message() -> None:
    paths = {path for cls in DECLARED.values() for path in describe_ours(cls)}
    assert OURS.keys() <= paths, "OURS allows a field that is not declared"
    assert (MORE_VERSIONS.keys() | FEWER_VERSIONS.keys()) <= DECLARED.keys()
