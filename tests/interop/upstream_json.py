"""A record of ours as Kafka's tools would print it.

Upstream's JSON has a field for everything that the version carries; a tagged field is left out
where it has its default. Ids are base64 in the URL alphabet, byte strings ordinary base64.
"""

from __future__ import annotations

import base64
import re
from typing import Any, Final
from uuid import UUID

from records.schema import ArrayOf, ControlRecord, Field, Message, MetadataRecord, StructOf

FIRST_PRIVATE_TAG: Final = 1000

_CONTROL_KINDS: Final = {
    "LeaderChangeMessage": "LeaderChange",
    "SnapshotHeaderRecord": "SnapshotHeader",
    "SnapshotFooterRecord": "SnapshotFooter",
    "KRaftVersionRecord": "KRaftVersion",
    "VotersRecord": "KRaftVoters",
}


def kind_of(record: MetadataRecord | ControlRecord) -> str:
    """DumpLogSegments' name of a record's type: `TOPIC_RECORD`, `KRaftVersion`."""
    name = type(record).__name__
    return _CONTROL_KINDS.get(name) or re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper()


def to_json(message: Message, version: int) -> dict[str, Any]:
    """The JSON object that upstream makes of a message at a version."""
    plain, tagged = message.schema().fields_at(version, flexible=True)
    told = [f for f in tagged if (f.tag or 0) < FIRST_PRIVATE_TAG]  # Java skips ours
    chosen = plain + [f for f in told if getattr(message, f.name) != f.default]
    return {_json_name(f): _value(f.type, getattr(message, f.name), version) for f in chosen}


def _json_name(field: Field) -> str:
    return field.wire_name[:1].lower() + field.wire_name[1:]


def _value(wire_type: Any, value: Any, version: int) -> Any:
    match wire_type, value:
        case _, None:
            return None
        case ArrayOf(element), _:
            return [_value(element, item, version) for item in value]
        case StructOf(), _:
            return to_json(value, version)
        case _, UUID():
            return uuid_text(value)
        case _, bytes() | memoryview():
            return base64.b64encode(value).decode()
        case _:
            return value


def uuid_text(value: UUID) -> str:
    """Upstream's text form of an id: 22 characters.

    >>> uuid_text(ZERO_UUID)
    'AAAAAAAAAAAAAAAAAAAAAA'
    """
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")
