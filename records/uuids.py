"""Writes UUIDs as Kafka does: 22 characters of URL-safe base64, without padding.

Source: upstream's org.apache.kafka.common.Uuid.
"""

from __future__ import annotations

import base64
import binascii
from uuid import UUID, uuid4

from records.types import METADATA_TOPIC_ID, ZERO_UUID


def encode_uuid(uuid: UUID) -> str:
    """Return a UUID's text as Kafka prints it.

    >>> encode_uuid(METADATA_TOPIC_ID)
    'AAAAAAAAAAAAAAAAAAAAAQ'
    """
    return base64.urlsafe_b64encode(uuid.bytes).rstrip(b"=").decode()


def decode_uuid(text: str) -> UUID:
    """Return the UUID that Kafka prints as `text`.

    Raises ValueError naming the text.

    >>> decode_uuid("AAAAAAAAAAAAAAAAAAAAAQ").int
    1
    """
    try:
        raw = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != 16:
        raise ValueError(f"{text!r} is not a UUID as Kafka writes it (22 characters of base64)")
    return UUID(bytes=raw)


def random_uuid() -> UUID:
    """Return a random UUID that is not reserved and whose text does not begin with a dash."""
    while True:
        uuid = uuid4()
        reserved = uuid in (ZERO_UUID, METADATA_TOPIC_ID)
        if not reserved and not encode_uuid(uuid).startswith("-"):
            return uuid
