"""The bytes of a consumer's subscription and assignment in the classic group protocol.

Brokers pass them on; they read a subscription only to know which topics a group is subscribed to.

Source: upstream's ConsumerProtocol.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from records.compression import Buffer

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_NO_DATA: Final = b"\xff\xff\xff\xff"


def encode_subscription(topics: Iterable[str]) -> bytes:
    """Encode the topics to which a group member subscribes, at version 0.

    >>> encode_subscription(["t"]).hex(" ", 1)
    '00 00 00 00 00 01 00 01 74 ff ff ff ff'
    """
    names = [name.encode() for name in topics]
    parts = [b"\x00\x00", _INT32.pack(len(names))]
    for name in names:
        parts += (_INT16.pack(len(name)), name)
    return b"".join((*parts, _NO_DATA))


def decode_subscription(data: Buffer) -> tuple[str, ...]:
    """Return the topics of an encoded subscription, or () for bytes that are not a subscription."""
    return subscribed_topics(data) or ()


def subscribed_topics(data: Buffer) -> tuple[str, ...] | None:
    """Return the topics of an encoded subscription, or None for any other bytes.

    >>> subscribed_topics(encode_subscription(["t"])), subscribed_topics(b"range")
    (('t',), None)
    """
    topics = _topics(data, with_partitions=False)
    return None if topics is None else tuple(name for name, _ in topics)


def encode_assignment(places: Iterable[tuple[str, int]]) -> bytes:
    """Encode a group member's assigned (topic, partition) pairs, at version 0.

    >>> decode_assignment(encode_assignment([("t", 0), ("t", 2)]))
    (('t', 0), ('t', 2))
    """
    by_topic: dict[str, list[int]] = {}
    for topic, partition in places:
        by_topic.setdefault(topic, []).append(partition)
    parts = [b"\x00\x00", _INT32.pack(len(by_topic))]
    for topic, partitions in by_topic.items():
        name = topic.encode()
        parts += (_INT16.pack(len(name)), name, _INT32.pack(len(partitions)))
        parts += map(_INT32.pack, partitions)
    return b"".join((*parts, _NO_DATA))


def decode_assignment(data: Buffer) -> tuple[tuple[str, int], ...]:
    """Return a group member's assigned (topic, partition) pairs, or () for other bytes."""
    return tuple(
        (topic, partition)
        for topic, partitions in _topics(data, with_partitions=True) or ()
        for partition in partitions
    )


def _topics(data: Buffer, *, with_partitions: bool) -> list[tuple[str, tuple[int, ...]]] | None:
    """Decode the topics of a subscription or assignment; return None for other bytes."""
    view = bytes(data)
    found: list[tuple[str, tuple[int, ...]]] = []
    try:
        (count,) = _INT32.unpack_from(view, 2)
        at = 6
        for _ in range(min(count, len(view))):
            (size,) = _INT16.unpack_from(view, at)
            name = view[at + 2 : at + 2 + size].decode()
            at += 2 + size
            partitions: tuple[int, ...] = ()
            if with_partitions:
                (many,) = _INT32.unpack_from(view, at)
                partitions = struct.unpack_from(f">{min(many, len(view))}i", view, at + 4)
                at += 4 + 4 * many
            found.append((name, partitions))
    except (struct.error, UnicodeDecodeError):
        return None
    return found
