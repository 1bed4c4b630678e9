"""Decides for a broker's handlers what a client may do: one gate of all listeners.

    gate = Gate(table, image=lambda: cluster.image)
    guarded = gate.reduce(request, gate.asked(connection, version))

Every handler that decodes a request asks the gate before it does anything else. Metadata,
DescribeCluster and DescribeTopicPartitions describe what the client may see, and so ask its
`Access` themselves.

Source: docs/design/security.md#enforcement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from coordinator.controller.access import Access, AccessTable, host_of
from coordinator.controller.api_operations import CHECKS
from coordinator.controller.guarding import Asked, Guard, Guarded, needs_one_cluster_operation
from coordinator.controller.guards import GUARDS as OF_CONTROLLER
from coordinator.controller.guards import cluster_guard
from coordinator.controller.image import MetadataImage
from diskless.access import groups, topics, transactions
from diskless.access.refusals import refuse
from raft.net import ServerConnection
from records.rpc.base import Request

GUARDS: Final[Mapping[int, Guard]] = {
    **{key: cluster_guard(key, refuse) for key in CHECKS if needs_one_cluster_operation(key)},
    **OF_CONTROLLER,
    **topics.GUARDS,
    **groups.GUARDS,
    **transactions.GUARDS,
}
"""The guards of a broker's requests, by api key."""

ASK_THEMSELVES: Final = frozenset({0, 3, 60, 75})
"""The requests whose handlers ask the client's `Access`: Produce, and descriptions."""

REFUSED_TO_ALL: Final = frozenset({38, 41})
"""Requests about delegation tokens, which are refused whoever asks."""


class Gate:
    """The access control of one broker. Belongs to the event loop."""

    def __init__(self, table: AccessTable, image: Callable[[], MetadataImage]) -> None:
        self._table = table
        self._image = image

    def access(self, connection: ServerConnection) -> Access:
        """Return what the client of a connection may do now."""
        return self._table.of(connection.principal, host_of(connection.peer))

    def asked(self, connection: ServerConnection, version: int) -> Asked:
        """Return the client of a connection with a request's version and the newest image."""
        return Asked(self.access(connection), version, self._image())

    def reduce(self, request: Request, asked: Asked) -> Guarded | None:
        """Return the allowed part of a request, or None if all of it is allowed."""
        guard = GUARDS.get(request.schema().key or 0)
        return None if guard is None else guard(request, asked)
