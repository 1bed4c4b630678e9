"""The types that every room uses for positions and identities.

`NewType` costs nothing at run time and lets the type checker tell an `Epoch` from an `Offset`. All
end offsets are exclusive: the first offset *not* included.
"""

from __future__ import annotations

from typing import Final, NamedTuple, NewType
from uuid import UUID

NodeId = NewType("NodeId", int)
"""A node's id (int32, `node.id`); voters, observers and brokers share one space."""

Epoch = NewType("Epoch", int)
"""A leader's generation (int32). Raft calls it a term."""

Offset = NewType("Offset", int)
"""A position in a log (int64)."""


class OffsetAndEpoch(NamedTuple):
    """The end of a log or of a snapshot: the offset after its last record, and that record's epoch.

    Comparing two compares epochs only where offsets are equal; whether one *log* is as up to date
    as another is the other way round (epoch first): `raft` has that rule.
    """

    offset: Offset
    epoch: Epoch


ZERO_UUID: Final = UUID(int=0)
"""Kafka's "no id"."""

METADATA_TOPIC_ID: Final = UUID(int=1)
"""The id of `__cluster_metadata`, fixed by upstream (Uuid.METADATA_TOPIC_ID)."""
