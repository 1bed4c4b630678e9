"""Encodes and decodes messages with the generated codecs.

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
from records.reference_decoder import explain
from records.reference_encoder import explain_values
from records.schema import Decoder, Encoder, Message

M = TypeVar("M", bound=Message)
Buffer = bytes | bytearray | memoryview

_NOT_THIS_MESSAGE = (struct.error, IndexError, ValueError)  # UnicodeDecodeError is a ValueError


def encode_parts(message: Message, version: int) -> list[bytes | memoryview]:
    """Encode a message as a sequence of buffers, without copying large record batches.

    Raises:  ValueError naming the field that the version cannot carry; UnsupportedVersionError.
    """
    cls = type(message)
    encoder = cls._encoders.get(version) or _encoder(cls, version)
    parts: list[bytes | memoryview] = []
    try:
        encoder(message, parts.append)
    except (struct.error, ValueError, AttributeError, TypeError):
        raise explain_values(message, version) from None
    return parts


def encode_message(message: Message, version: int) -> bytes:
    """Encode a message without header or frame.

    Raises as `encode_parts`.
    """
    return b"".join(encode_parts(message, version))


def decode_message(
    cls: type[M], data: Buffer, version: int, start: int = 0, *, whole: bool = True
) -> M:
    """Decode a message that begins at `start` in `data` and, if `whole`, ends with `data`.

    Args:    whole: nothing may follow it. Clients' requests may have a few bytes too many, which
             Kafka's brokers never look at: librdkafka 2.16 asks so for the metadata of all topics.
    Raises:  MalformedMessageError naming field, position and reason; UnsupportedVersionError.
    """
    decoder = cls._decoders.get(version) or _decoder(cls, version)
    end = len(data)
    try:
        message, position = decoder(data, start, end)
    except _NOT_THIS_MESSAGE:
        raise explain(cls, memoryview(data)[start:], version) from None
    if whole and position != end:
        raise explain(cls, memoryview(data)[start:], version)
    decoded: M = message
    return decoded


def _encoder(cls: type[Message], version: int) -> Encoder:
    _check_version(cls, version)
    encoder = cls._encoders[version] = make_encoder(cls, version)
    return encoder


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
