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
from coordinator.leader_client import Address, Failure, LeaderClient
from records.internal_topics import CONSUMER_OFFSETS
from records.kafka_errors import ErrorCode
from records.rpc.base import Request, Response

log = logging.getLogger("coordinator.groups")


_NOT_LEADING: Final = frozenset(
    {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.COORDINATOR_NOT_AVAILABLE}
)


def _refusal(answer: Any) -> CoordinatorError | None:
    """Return the error if the response is from a node that does not lead the log, else None."""
    code = answer.error_code
    return CoordinatorError(ErrorCode(code), "it does not lead") if code in _NOT_LEADING else None


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
        self._leader = LeaderClient(
            bootstrap, 0, client_id=client_id, timeout_ms=attempt_timeout_ms, topic=CONSUMER_OFFSETS
        )

    async def call(self, request: Request) -> Response | None:
        """Send one request to the group log's leader; return None if the outcome is unknown."""
        answer = await self._leader.attempt(request, CALLS[type(request)], _refusal)
        if not isinstance(answer, Failure):
            response: Response = answer
            return response
        if answer.refusal is None:
            log.debug("request=%s reason=%s", request.schema().name, answer.error)
        return answer.refusal

    def close(self) -> None:
        """Close the connections; calls in flight end with an error."""
        self._leader.close()
