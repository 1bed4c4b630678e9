"""kio as an independent judge of the RPCs and the control records.

kio is generated from upstream's schemas by other people. For every message that both have, at every
version, a random value has the same bytes written by kio and by us, and kio reads from our bytes
the value that we wrote.
"""

from __future__ import annotations

import dataclasses
import typing
from datetime import UTC, datetime, timedelta
from types import NoneType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.index import load_entity_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from records.codec import decode_message, encode_message
from records.control import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)
from records.rpc import API
from records.schema import UNKNOWN_TAGGED_FIELDS, ArrayOf, Message, StructOf, WireType
from records.types import ZERO_UUID
from records.wire import UUID16
from tests.examples import examples
from tests.records.strategies import case_name, messages, versions_of

pytestmark = pytest.mark.slow

_CONTROL = {
    LeaderChangeMessage: "leader_change_message",
    SnapshotHeaderRecord: "snapshot_header_record",
    SnapshotFooterRecord: "snapshot_footer_record",
    KRaftVersionRecord: "k_raft_version_record",
    VotersRecord: "voters_record",
}
_KIO_NAMES = {
    "throttle_time_ms": "throttle_time",
    "timeout_ms": "timeout",
    "max_wait_ms": "max_wait",
    "log_append_time_ms": "log_append_time",
    "session_timeout_ms": "session_timeout",
    "rebalance_timeout_ms": "rebalance_timeout",
    "retention_time_ms": "retention_time",
    "transaction_timeout_ms": "transaction_timeout",
    "push_interval_ms": "push_interval",
    "session_lifetime_ms": "session_lifetime",
    "max_lifetime_ms": "max_lifetime",
    "renew_period_ms": "renew_period",
    "expiry_time_period_ms": "expiry_time_period",
    "issue_timestamp_ms": "issue_timestamp",
    "expiry_timestamp_ms": "expiry_timestamp",
    "max_timestamp_ms": "max_timestamp",
    "transaction_start_time_ms": "transaction_start_time",
    "enable_2_pc": "enable2_pc",
}
_SPECIAL = (
    (UNKNOWN_TAGGED_FIELDS, st.just(())),  # kio refuses what it does not know
    ("start_offset", st.just(-1)),  # KIP-1114's tagged fields: left out, unknown to kio
    ("chunks", st.just(())),
    ("record_count", st.just(-1)),  # ours, in the footer
    ("content_crc", st.just(-1)),
    ("archived_offset", st.just(-1)),  # ours, of a replica that is an archive
    ("floor", st.just(-1)),  # ours
    ("epochs", st.just(())),  # ours, in the snapshot header
    ("unready_reason", st.none()),  # ours
    ("wall_clock_ms", st.just(-1)),  # ours
    ("client_request_version", st.just(-1)),  # ours
    ("error_code", st.sampled_from([code.value for code in ErrorCode])),  # an enumeration there
    ("partition_error_code", st.sampled_from([code.value for code in ErrorCode])),
    ("log_append_time_ms", st.just(-1) | st.integers(0, 2**42)),  # a date there
    ("retention_time_ms", st.integers(-1, 2**42)),  # a timedelta there, which holds no int64
    ("session_lifetime_ms", st.integers(-1, 2**42)),
    ("max_lifetime_ms", st.integers(-1, 2**42)),
    ("renew_period_ms", st.integers(-1, 2**42)),
    ("expiry_time_period_ms", st.integers(-1, 2**42)),
    ("issue_timestamp_ms", st.integers(0, 2**42)),
    ("expiry_timestamp_ms", st.integers(0, 2**42)),
    ("max_timestamp_ms", st.integers(0, 2**42)),
    ("transaction_start_time_ms", st.integers(0, 2**42)),
)


def where_in_kio(cls: type[Message]) -> tuple[str, EntityType]:
    """kio's name for a message, and whether it is a request, a response or neither."""
    if cls in _CONTROL:
        return _CONTROL[cls], EntityType.data
    key = cls.number()
    kind = EntityType.request if cls is API[key].request else EntityType.response
    return api_key_map.get(key, "not in kio"), kind


def is_in_kio(cls: type[Message], version: int) -> bool:
    """From kio's index: to load the four hundred modules takes a second of every test process."""
    name, kind = where_in_kio(cls)
    return kind in schema_name_map.get(name, {}).get(version, {})


def in_kio(cls: type[Message], version: int) -> type[Any]:
    """kio's class for a message that it has."""
    name, kind = where_in_kio(cls)
    return load_entity_schema(name, version, kind)


JUDGED = [
    (cls, version)
    for cls in (*_CONTROL, *(cls for api in API.values() for cls in api))
    for version in versions_of(cls)
    if is_in_kio(cls, version)
]


def to_kio(message: Message, kio_class: type[Any], version: int) -> Any:
    """The same value in kio's classes."""
    ours = {_KIO_NAMES.get(f.name, f.name): f for f in message.schema().fields}
    hints = typing.get_type_hints(kio_class)
    values = {}
    for there in dataclasses.fields(kio_class):
        field = ours[there.name]
        value = getattr(message, field.name)
        kind = there.metadata.get("kafka_type")
        values[there.name] = _convert(field.type, value, hints[there.name], kind, version)
    return kio_class(**values)


def _convert(wire_type: WireType, value: Any, hint: Any, kind: str | None, version: int) -> Any:
    match wire_type:
        case _ if kind == "error_code":
            return ErrorCode(value)
        case _ if kind in ("timedelta_i32", "timedelta_i64"):
            return timedelta(milliseconds=value)
        case _ if kind == "datetime_i64":
            return (
                None
                if value == -1
                else datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=value)
            )
        case _ if wire_type is UUID16:
            return None if value == ZERO_UUID else value
        case ArrayOf(element) if value is not None:
            return tuple(_convert(element, item, hint, kind, version) for item in value)
        case StructOf() if value is not None:
            return to_kio(value, _dataclass_in(hint), version)
        case _:
            return value


def _dataclass_in(hint: Any) -> type[Any]:
    """`X` of `tuple[X, ...] | None`."""
    if dataclasses.is_dataclass(hint):
        return hint
    inner = [arm for arm in typing.get_args(hint) if arm not in (NoneType, ...)]
    return _dataclass_in(inner[0])


class _Parts(list[bytes]):
    """What kio calls a buffer."""

    def write(self, data: bytes) -> None:
        self.append(bytes(data))


@pytest.mark.parametrize("case", JUDGED, ids=case_name)
@settings(
    max_examples=examples(3),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example],
)
@given(st.data())
def test_the_kio_library_and_esker_encode_and_decode_messages_alike(
    case: tuple[type[Message], int], data: st.DataObject
) -> None:
    cls, version = case
    kio_class = in_kio(cls, version)
    assert kio_class is not None
    message = data.draw(messages(cls, version, special=_SPECIAL))
    theirs = to_kio(message, kio_class, version)
    written = _Parts()
    entity_writer(kio_class)(written, theirs)
    encoded = encode_message(message, version)
    assert b"".join(written) == encoded
    assert entity_reader(kio_class)(encoded, 0) == (theirs, len(encoded))
    assert decode_message(cls, b"".join(written), version) == message


def test_the_kio_library_has_every_kafka_message_that_esker_declares() -> None:
    judged = {cls for cls, _ in JUDGED}
    for key, api in API.items():
        assert (key >= 1000) or {*api} <= judged, f"api key {key}"
    assert judged.issuperset(_CONTROL)
