"""kio reads what we answer, as a client of other people's making would. See `tests/records`."""

from __future__ import annotations

from typing import Final

from kio.serial import entity_reader

from records.rpc.base import Response
from records.schema import Message
from tests.records.test_messages_kio import in_kio, is_in_kio, to_kio

OWN_TAGS: Final = ("chunks", "start_offset", "wall_clock_ms")
"""Tagged fields of KIP-1114 and ours: unknown to kio, which skips nothing that it does not know."""


def objection(response: type[Response], answer: Response, data: bytes, version: int) -> str:
    """What kio has against these bytes; empty if it reads the same from them, or cannot read it."""
    if getattr(answer, "expiry_timestamp_ms", 0) < 0:
        return ""  # as Kafka refuses a token; kio reads no such time
    if not is_in_kio(response, version) or _has_own_tags(answer):
        return ""
    kio_class = in_kio(response, version)
    try:
        read = entity_reader(kio_class)(data, 0)
    except Exception as error:
        return f"kio: {error!r}"
    return "" if read == (to_kio(answer, kio_class, version), len(data)) else f"kio reads {read}"


def _has_own_tags(value: Message) -> bool:
    for field in value.schema().fields:
        item = getattr(value, field.name)
        if field.name in OWN_TAGS and item != field.default:
            return True
        items = item if isinstance(item, tuple) else (item,)
        if any(isinstance(one, Message) and _has_own_tags(one) for one in items):
            return True
    return False
