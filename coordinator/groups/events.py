"""What a broker's group coordinator is told, and what it asks for: the seam to the world.

Source: docs/design/quorum.md#sans-io-core.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from records.rpc.base import Request, Response


class InboundRequest(NamedTuple):
    """A client asks. Exactly one `Reply` with this ticket follows, now or later."""

    ticket: Hashable
    request: Any  # JoinGroup, SyncGroup, Heartbeat, LeaveGroup, Offset*, ListGroups, Describe*
    version: int
    client_id: str
    client_host: str  # "/127.0.0.1", as upstream has it
    unique: str  # a UUID of this request's own, for a member id; only a JoinGroup needs one


class LogResponse(NamedTuple):
    """The log of groups answers a `Call`; None: nobody knows, it was lost or took too long."""

    call_id: int
    response: Any


class BrokersChanged(NamedTuple):
    """The unfenced brokers, as this broker knows them."""

    broker_ids: frozenset[int]
    broker_epoch: int  # our own


class Tick(NamedTuple):
    """`deadline_ms` is here."""


Event = InboundRequest | LogResponse | BrokersChanged | Tick


class Reply(NamedTuple):
    """Answer a client."""

    ticket: Hashable
    response: Response


class Call(NamedTuple):
    """Ask the log of groups. Exactly one `Answered` is expected."""

    call_id: int
    request: Request


Effect = Reply | Call


class Topics(Protocol):
    """What a broker knows of topics."""

    def age_ms(self) -> float | None:
        """How old at most that is; None: it may be half of what there is."""

    def partition_count(self, name: str) -> int | None:
        """None: no such topic."""

    def topic_id(self, name: str) -> UUID | None:
        """None: no such topic."""

    def name(self, topic_id: UUID) -> str | None:
        """None: no such topic."""
