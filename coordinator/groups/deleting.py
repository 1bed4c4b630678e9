"""DeleteGroups: one request of many groups, as many requests of one.

Whether a group has members only its owner knows: some may have joined, and the log not heard of it.
So each group is asked for as by a member, is loaded if it must be, and says no while anybody is in
it. Its removal then goes down the group's line, behind its commits and under its ownership.

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
"""Groups of one request: each may be two calls of the log."""


class GroupTicket:
    """The ticket of one group's share of a request."""

    __slots__ = ("_put",)

    def __init__(self, put: Callable[[Any], None]) -> None:
        self._put = put

    def on_response(self, response: Any) -> None:
        """What became of the group."""
        self._put(response)


def begin_deletion(
    inbound: InboundRequest,
    request: DeleteGroupsRequest,
    *,
    ask: Callable[[str, InboundRequest], None],
    reply: Callable[[InboundRequest, Response], None],
) -> None:
    """Ask for each group once; reply when all have answered."""
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
