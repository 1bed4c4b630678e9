"""kafka-python as a second judge of what clients send and get: Produce, Fetch, Metadata,
ApiVersions.

It reads our bytes into the values we wrote, at every version both know, and skips a tagged field
that only we have; encoded again by it, they are the same bytes. It takes tagged structures to have
no tagged section of their own, and turns every error of ApiVersions into version 0, so those stay
out: kio judges them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from records.codec import encode_message
from records.rpc import cluster, fetch, produce
from records.schema import UNKNOWN_TAGGED_FIELDS, ArrayOf, Field, Message, StructOf
from records.types import ZERO_UUID
from tests.examples import examples
from tests.records.strategies import Special, case_name, messages, versions_of

pytestmark = pytest.mark.slow

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas the old way
    from kafka.protocol.consumer import FetchRequest, FetchResponse
    from kafka.protocol.metadata import (
        ApiVersionsRequest,
        ApiVersionsResponse,
        MetadataRequest,
        MetadataResponse,
    )
    from kafka.protocol.producer import ProduceRequest, ProduceResponse

THEIRS = {
    produce.ProduceRequest: ProduceRequest,
    produce.ProduceResponse: ProduceResponse,
    fetch.FetchRequest: FetchRequest,
    fetch.FetchResponse: FetchResponse,
    cluster.MetadataRequest: MetadataRequest,
    cluster.MetadataResponse: MetadataResponse,
    cluster.ApiVersionsRequest: ApiVersionsRequest,
    cluster.ApiVersionsResponse: ApiVersionsResponse,
}
CASES = [
    (cls, version)
    for cls, theirs in THEIRS.items()
    for version in versions_of(cls)
    if version <= theirs.max_version
]


def tagged_fields(cls: type[Message]) -> Iterator[Field]:
    """The tagged fields anywhere in a message."""
    for field in cls.schema().fields:
        if field.tag is not None:
            yield field
        inner = field.type.element if isinstance(field.type, ArrayOf) else field.type
        if isinstance(inner, StructOf):
            yield from tagged_fields(inner.message)


@cache
def special(cls: type[Message]) -> Special:
    """Values that kafka-python can read: no tagged fields, except one that only we know."""
    plain = tuple((f.name, st.just(f.default)) for f in tagged_fields(cls))
    skipped = (("start_offset", st.just(-1) | st.just(300)),)
    whole = (("error_code", st.just(0)),) if cls is cluster.ApiVersionsResponse else ()
    sets = tuple((name, st.just(-(2**31))) for name in _BIT_FIELDS)
    return (*plain, *skipped, *whole, *sets, (UNKNOWN_TAGGED_FIELDS, st.just(())))


_BIT_FIELDS = {"cluster_authorized_operations", "topic_authorized_operations"}  # sets, there
_few = settings(
    max_examples=examples(3),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example],
)


def assert_same(message: Any, theirs: Any, version: int, *, flexible: bool) -> None:
    """Field by field: what they read is what we wrote."""
    if isinstance(message, tuple):
        assert len(message) == len(theirs)
        for ours, other in zip(message, theirs, strict=True):
            assert_same(ours, other, version, flexible=flexible)
    elif isinstance(message, Message):
        plain, tagged = message.schema().fields_at(version, flexible=flexible)
        for field in plain + tagged:
            if field.tag is not None or field.name in _BIT_FIELDS:
                continue  # a tagged field that is not written
            assert_same(
                getattr(message, field.name),
                getattr(theirs, field.name),
                version,
                flexible=flexible,
            )
    else:
        assert message == (ZERO_UUID if isinstance(message, UUID) and theirs is None else theirs)


@pytest.mark.parametrize("case", CASES, ids=case_name)
@_few
@given(st.data())
def test_kafka_python_decodes_the_messages_that_esker_encodes(
    case: tuple[type[Message], int], data: st.DataObject
) -> None:
    cls, version = case
    message = data.draw(messages(cls, version, special=special(cls)))
    encoded = encode_message(message, version)
    read = THEIRS[cls].decode(encoded, version=version)
    assert_same(message, read, version, flexible=version in cls.schema().flexible)
    if "start_offset=300" not in repr(message):  # they skip this tag, and forget it
        read._header = None  # it asks, even where no header is to be written
        assert bytes(read.encode(version=version)) == encoded
