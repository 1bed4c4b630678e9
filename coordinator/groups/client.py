"""A broker's client of the group log's leader.

It makes one attempt per call: the core repeats a call by itself, under the same sequence number,
and knows for how long that is useful. So a failed attempt returns None and raises nothing.

Source: docs/design/groups.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Final

from coordinator.errors import CoordinatorError
from coordinator.groups.service import CALLS
from coordinator.leader_client import Address, LeaderFinder
from raft.net.errors import NetError, Reason
from records.kafka_errors import ErrorCode
from records.rpc.base import Request, Response

log = logging.getLogger("coordinator.groups")

CONSUMER_OFFSETS: Final = "__consumer_offsets"

_LEADS_NOT: Final = frozenset(
    {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.COORDINATOR_NOT_AVAILABLE}
)


class GroupLogClient:
    """Finds the leader of the group log and sends it requests.

    Belongs to the event loop it is used on.
    """

    def __init__(
        self,
        bootstrap: Iterable[Address],
        *,
        client_id: str = "esker",
        attempt_timeout_ms: int = 2_000,
    ) -> None:
        self._finder = LeaderFinder(
            bootstrap, 0, client_id=client_id, timeout_ms=attempt_timeout_ms, topic=CONSUMER_OFFSETS
        )

    async def call(self, request: Request) -> Response | None:
        """Send one request and return the response, or None if the outcome is unknown."""
        response_type: type[Any] = CALLS[type(request)]
        try:
            rpc = await self._finder.leader()
            version = rpc.version_for(type(request))
        except (CoordinatorError, NetError) as error:
            log.debug("request=%s reason=%s", request.schema().name, error)
            return None
        try:
            answer: Any = await rpc.call(request, response_type, version)
        except NetError as error:
            log.debug("request=%s reason=%s", request.schema().name, error)
            if error.reason is Reason.BAD_ANSWER:  # later frames may be invalid too
                rpc.connection.close()
            self._finder.lost(rpc)
            return None
        if answer.error_code in _LEADS_NOT:
            self._finder.lost(rpc)
        response: Response = answer
        return response

    def close(self) -> None:
        """Close the connections; calls in flight end."""
        self._finder.close()
