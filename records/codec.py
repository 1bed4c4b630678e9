"""Messages to bytes and back: the door to the generated codecs.

    data = encode_message(request, version)
    request = decode_message(VoteRequest, data, version)

Decoding accepts any buffer, never copies record batches out of it (a `Records` field is a view),
and raises `RecordError`s only. Encoding refuses what the version cannot carry.
"""

from __future__ import annotations

import struct
from typing import TypeVar

from records.codegen import make_decoder, make_encoder
from records.errors import UnsupportedVersionError
from records.interpreter import explain
from records.schema import Decoder, Message

M = TypeVar("M", bound=Message)
Buffer = bytes | bytearray | memoryview

_NOT_THIS_MESSAGE = (struct.error, IndexError, ValueError)  # UnicodeDecodeError is a ValueError


def encode_parts(message: Message, version: int) -> list[bytes | memoryview]:
    """The message's bytes as buffers in order: large record batches are handed on, not copied.

    Raises:  ValueError if the version cannot carry a field's value, or a value is out of range;
             UnsupportedVersionError.
    """
    cls = type(message)
    encoder = cls._encoders.get(version)
    if encoder is None:
        _check_version(cls, version)
        encoder = cls._encoders[version] = make_encoder(cls, version)
    parts: list[bytes | memoryview] = []
    try:
        encoder(message, parts.append)
    except (struct.error, ValueError, AttributeError, TypeError) as error:
        raise ValueError(f"{cls.__name__} v{version} cannot carry {message!r}: {error}") from error
    return parts


def encode_message(message: Message, version: int) -> bytes:
    """The message's bytes at a version, without header or frame. Errors: as `encode_parts`."""
    return b"".join(encode_parts(message, version))


def decode_message(cls: type[M], data: Buffer, version: int) -> M:
    """The message that `data` holds, all of it.

    Raises:  MalformedMessageError naming field, position and reason; UnsupportedVersionError.
    """
    view = memoryview(data)
    try:
        message, position = (cls._decoders.get(version) or _decoder(cls, version))(
            view, 0, len(view)
        )
    except _NOT_THIS_MESSAGE:
        raise explain(cls, view, version) from None
    if position != len(view):
        raise explain(cls, view, version)
    decoded: M = message
    return decoded


def _decoder(cls: type[Message], version: int) -> Decoder:
    _check_version(cls, version)
    decoder = cls._decoders[version] = make_decoder(cls, version)
    return decoder


def _check_version(cls: type[Message], version: int) -> None:
    versions = cls.schema().versions
    if version not in versions:
        raise UnsupportedVersionError(
            message=cls.__name__, version=version, supported=repr(versions)
        )
