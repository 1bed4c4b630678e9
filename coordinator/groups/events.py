"""The events and effects of a broker's group coordinator.

Source: docs/design/quorum.md#sans-io-core.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from records.rpc.base import Request, Response


class InboundRequest(NamedTuple):
    """A client's request. Exactly one `Reply` with this ticket follows, now or later."""

    ticket: Hashable
    request: Any  # JoinGroup, SyncGroup, Heartbeat, LeaveGroup, Offset*, ListGroups, Describe*
    version: int
    client_id: str
    client_host: str  # "/127.0.0.1", in upstream's form
    unique: str  # a UUID drawn for this request, to build a member id; only JoinGroup needs it
    transaction_number: int = -1  # proved to be ongoing; only TxnOffsetCommit has one
    is_connected: Callable[[], bool] = lambda: True  # whether the client still waits for a response


class LogResponse(NamedTuple):
    """The group log's response to a `Call`; None if it was lost or took too long."""

    call_id: int
    response: Any


class BrokersChanged(NamedTuple):
    """The set of unfenced brokers in this broker's image has changed."""

    broker_ids: frozenset[int]
    broker_epoch: int  # of this broker


class Tick(NamedTuple):
    """The time of `deadline_ms` has come."""


Event = InboundRequest | LogResponse | BrokersChanged | Tick


class Reply(NamedTuple):
    """Send a response to a client."""

    ticket: Hashable
    response: Response


class Call(NamedTuple):
    """Send a request to the group log. Exactly one `LogResponse` follows."""

    call_id: int
    request: Request


Effect = Reply | Call


class Topics(Protocol):
    """The topics in the broker's metadata image."""

    def age_ms(self) -> float | None:
        """Return an upper bound of the cluster image's age in ms, or None if it is unknown.

        The age is unknown while the image may be incomplete.
        """

    def partition_count(self, name: str) -> int | None:
        """Return a topic's number of partitions; None if there is no such topic."""

    def topic_id(self, name: str) -> UUID | None:
        """Return a topic's id by its name; None if there is no such topic."""

    def name(self, topic_id: UUID) -> str | None:
        """Return a topic's name by its id; None if there is no such topic."""
