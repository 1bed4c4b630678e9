"""Counts the topics, partitions and tagged fields of a Produce request before it is decoded.

A request may have a hundred megabytes, which is right for record batches and wrong for anything
else: thirteen million empty partitions have that size too, and decoding them takes gigabytes and
blocks the loop for minutes. So a long request is scanned first, and refused once it has named more
than a producer ever would. A short one cannot name so many, and is not scanned.

The scan trusts no length: a body that ends early or contradicts itself is left to the codec, which
refuses it.

Source: the protocol guide, Produce; invariant 10 (docs/design/invariants.md).
"""

from __future__ import annotations

import struct
from struct import Struct
from typing import Final

from raft.net import BadHeaderError, Frame, RequestHeader

MAX_NAMED: Final = 20_000
"""Topics, partitions and tagged fields of one request. An object has 10,000 batches at most."""

SHORT_BYTES: Final = 2 * MAX_NAMED
"""A request up to this size cannot exceed MAX_NAMED: the smallest item, a tagged field, takes two
bytes."""

FIRST_FLEXIBLE: Final = 9
FIRST_WITH_TOPIC_IDS: Final = 13

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")


class _TooManyError(Exception):
    """The request names more than MAX_NAMED items."""


class _Scan:
    """A scan over a request's bytes. Raises IndexError or struct.error past their end."""

    def __init__(self, body: Frame, version: int) -> None:
        self._body = body
        self._position = 0
        self._left = MAX_NAMED
        self._flexible = version >= FIRST_FLEXIBLE
        self._by_id = version >= FIRST_WITH_TOPIC_IDS

    def request(self) -> None:
        """Scan the whole Produce request, counting its topics, partitions and other items."""
        self._skip(self._length(_INT16))  # the transactional id
        self._skip(2 + 4)  # acks, timeout
        for _ in range(self._length(_INT32)):
            self._topic()
        self._tagged_fields()

    def _topic(self) -> None:
        self._count_item()
        self._skip(16 if self._by_id else self._length(_INT16))
        for _ in range(self._length(_INT32)):
            self._count_item()
            self._skip(4)  # the index
            self._skip(self._length(_INT32))  # record batches
            self._tagged_fields()
        self._tagged_fields()

    def _tagged_fields(self) -> None:
        if self._flexible:
            for _ in range(self._uvarint()):
                self._count_item()
                self._uvarint()
                self._skip(self._uvarint())

    def _count_item(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise _TooManyError

    def _length(self, fixed: Struct) -> int:
        """Read the length of the field that follows; a null field has length 0."""
        if self._flexible:
            return max(0, self._uvarint() - 1)
        (length,) = fixed.unpack_from(self._body, self._position)
        self._position += fixed.size
        return max(0, int(length))

    def _skip(self, size: int) -> None:
        self._position += size
        if self._position > len(self._body):
            raise IndexError

    def _uvarint(self) -> int:
        value = 0
        for shift in (0, 7, 14, 21, 28):
            byte = self._body[self._position]
            self._position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
        return value


def check(header: RequestHeader, body: Frame) -> None:
    """Raise BadHeaderError for a Produce request that names too many items."""
    if len(body) <= SHORT_BYTES:
        return
    try:
        _Scan(body, header.api_version).request()
    except (IndexError, ValueError, struct.error):
        return  # the codec refuses it, and says why
    except _TooManyError:
        raise BadHeaderError(
            f"Produce of {len(body)} bytes names more than {MAX_NAMED} topics, partitions and "
            f"tagged fields; client id {(header.client_id or '')[:100]!r}"
        ) from None
