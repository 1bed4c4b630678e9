"""Protobuf values: the Arrow type of a message, and the decoding of a value by its descriptor.

A schema is a FileDescriptorSet, as `protoc --include_imports --descriptor_set_out` writes it, or
one FileDescriptorProto, as registries give it. An unsigned 64-bit number is a decimal, since a long
does not hold it; a wrapper (`google.protobuf.Int64Value`) is its value; a message that contains
itself has no end as a column and is refused.

Source: Protocol Buffers, encoding and well-known types; Confluent's wire format (message indexes).
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

# Files of well-known types, which registries leave out of what they give.
from google.protobuf import duration_pb2, timestamp_pb2, wrappers_pb2  # isort: skip

from spark_jobs.topic_tables.avro_values import BadValueError
from spark_jobs.topic_tables.value_types import SchemaError, check_type, list_of

_WELL_KNOWN: Final = (timestamp_pb2, wrappers_pb2, duration_pb2)
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_SCALARS: Final = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
}
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class NoMessageError(SchemaError):
    """A schema has no message of this name or at these indexes."""


MessageName = str | tuple[int, ...]
"""A message's full name, or its indexes in the last file: of the outermost message, and so on."""


def protobuf_type(schema: bytes, message: MessageName) -> pa.DataType:
    """Return the Arrow type of a message.

    Raises:  SchemaError.
    """
    kind = _message_type(_descriptor(schema, message), "value", ())
    check_type(kind)
    return kind


def decode_protobuf(schema: bytes, message: MessageName, data: bytes) -> Any:
    """Return the value that bytes are as a message.

    Raises:  BadValueError; SchemaError if the schema has no such message.
    """
    made = message_factory.GetMessageClass(_descriptor(schema, message))()
    try:
        made.ParseFromString(data)
        return _to_dict(made)
    except (DecodeError, OverflowError) as error:
        raise BadValueError(f"not a {made.DESCRIPTOR.full_name}: {error}") from None


@lru_cache(maxsize=1_000)
def _descriptor(schema: bytes, message: MessageName) -> Descriptor:
    """Return the descriptor of a message.

    Raises:  SchemaError.
    """
    try:
        files = list(descriptor_pb2.FileDescriptorSet.FromString(schema).file)
        if not files or not files[-1].name:
            raise DecodeError("no file in it")
    except DecodeError:
        try:
            files = [descriptor_pb2.FileDescriptorProto.FromString(schema)]
        except DecodeError as error:
            raise SchemaError(f"not a FileDescriptorSet of Protobuf: {error}") from None
    pool = descriptor_pool.DescriptorPool()
    named = {file.name for file in files}
    try:
        for module in _WELL_KNOWN:
            if module.DESCRIPTOR.name not in named:
                pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
        for file in files:
            pool.AddSerializedFile(file.SerializeToString())
        if isinstance(message, str):
            return pool.FindMessageTypeByName(message)
        first, *rest = message
        found = list(pool.FindFileByName(files[-1].name).message_types_by_name.values())[first]
        for index in rest:
            found = found.nested_types[index]
        return found
    except (KeyError, IndexError):
        raise NoMessageError(f"the Protobuf schema has no message {message}") from None
    except TypeError as error:  # a file that it imports is missing
        raise SchemaError(f"not a whole Protobuf schema: {error}") from None


def _message_type(message: Descriptor, path: str, within: Sequence[str]) -> pa.DataType:
    if message.full_name in within:
        raise SchemaError(f"{path} is a {message.full_name}, which contains itself")
    inner = (*within, message.full_name)
    return pa.struct(
        [
            pa.field(one.name, _field_type(one, f"{path}.{one.name}", inner))
            for one in message.fields
        ]
    )


def _field_type(field: FieldDescriptor, path: str, within: Sequence[str]) -> pa.DataType:
    if _is_map(field):
        entry = field.message_type.fields_by_name
        return pa.map_(
            _single_type(entry["key"], path, within), _single_type(entry["value"], path, within)
        )
    kind = _single_type(field, path, within)
    return list_of(kind) if field.is_repeated else kind


def _single_type(field: FieldDescriptor, path: str, within: Sequence[str]) -> pa.DataType:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return pa.binary()
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return pa.string()
    message = field.message_type
    if message is None:
        return _SCALARS[field.cpp_type]
    if message.full_name == _TIMESTAMP:
        return pa.timestamp("us", "UTC")
    if message.full_name in _WRAPPERS:
        return _single_type(message.fields_by_name["value"], path, within)
    return _message_type(message, path, within)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _to_dict(message: Message) -> dict[str, Any]:
    """Return a message's fields; one that may be absent, and is, is None."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if _is_map(field):
            item = field.message_type.fields_by_name["value"]
            found[field.name] = [(key, _single(item, value[key])) for key in value]
        elif field.is_repeated:
            found[field.name] = [_single(field, one) for one in value]
        elif field.has_presence and not message.HasField(field.name):
            found[field.name] = None
        else:
            found[field.name] = _single(field, value)
    return found


def _single(field: FieldDescriptor, value: Any) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        named = field.enum_type.values_by_number.get(value)
        return str(value) if named is None else named.name
    if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64:
        return Decimal(value)
    message = field.message_type
    if message is None:
        return value
    if message.full_name == _TIMESTAMP:
        return _EPOCH + datetime.timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
    if message.full_name in _WRAPPERS:
        return _single(message.fields_by_name["value"], value.value)
    return _to_dict(value)
