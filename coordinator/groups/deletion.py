"""DeleteGroups: splits a request for many groups into one request per group.

Only a group's owner knows whether it has members: some may have joined, and the log not know it
yet. So each deletion is handled like a member's request: the group is loaded if necessary, and
refuses while it has members. Its removal then goes through the group's outbox, after its commits
and under its ownership.

Source: KIP-229; upstream's GroupCoordinatorService (deleteGroups).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from coordinator.groups.error_responses import error_response
from coordinator.groups.events import InboundRequest
from records.kafka_errors import ErrorCode
from records.rpc.base import Response
from records.rpc.groups import DeleteGroupsRequest, DeleteGroupsResponse

MAX_DELETED: Final = 1_000
"""Groups in one request: each may need two calls of the log."""


class GroupTicket:
    """The ticket of one group's part of a DeleteGroups request."""

    __slots__ = ("_put",)

    def __init__(self, put: Callable[[Any], None]) -> None:
        self._put = put

    def on_response(self, response: Any) -> None:
        """Add one consumer group's result to the DeleteGroups response."""
        self._put(response)


def begin_deletion(
    inbound: InboundRequest,
    request: DeleteGroupsRequest,
    *,
    ask: Callable[[str, InboundRequest], None],
    reply: Callable[[InboundRequest, Response], None],
) -> None:
    """Delete each consumer group of a DeleteGroups request; reply when all have a result."""
    names = tuple(dict.fromkeys(request.groups_names))
    if len(names) > MAX_DELETED:
        reply(inbound, error_response(inbound, ErrorCode.INVALID_REQUEST))
        return
    if not names:
        reply(inbound, DeleteGroupsResponse(results=()))
    found: dict[str, DeleteGroupsResponse.DeletableGroupResult] = {}

    def put(response: DeleteGroupsResponse) -> None:
        (result,) = response.results
        found[result.group_id] = result
        if len(found) == len(names):
            reply(inbound, DeleteGroupsResponse(results=tuple(found[name] for name in names)))

    for name in names:
        single = DeleteGroupsRequest(groups_names=(name,))
        ask(name, inbound._replace(ticket=GroupTicket(put), request=single))
