"""A broker's client of the transaction log's leader.

It makes one attempt per call, and tells an attempt that may have been carried out from one that was
not: an owner acquires its ownership anew after the first kind.

Source: docs/design/transactions.md#ownership.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Final

from coordinator.errors import CoordinatorError
from coordinator.leader_client import Address, Failure, LeaderClient
from coordinator.transactions.service import CALLS
from records.internal_topics import TRANSACTION_STATE
from records.kafka_errors import ErrorCode
from records.rpc.base import Request, Response

log = logging.getLogger("coordinator.transactions")

_NOT_LEADING: Final = frozenset(
    {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.COORDINATOR_NOT_AVAILABLE}
)


def _refusal(answer: Any) -> CoordinatorError | None:
    """Return the error if the response is from a node that does not lead the log, else None."""
    code = answer.error_code
    return CoordinatorError(ErrorCode(code), "it does not lead") if code in _NOT_LEADING else None


class TransactionLogClient:
    """Finds the leader of the transaction log and sends it requests.

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
            bootstrap,
            0,
            client_id=client_id,
            timeout_ms=attempt_timeout_ms,
            topic=TRANSACTION_STATE,
        )

    async def call(self, request: Request) -> Response | Failure:
        """Send one request to the transaction log's leader; return its response or a Failure."""
        answer = await self._leader.attempt(request, CALLS[type(request)], _refusal)
        if isinstance(answer, Failure):
            log.debug("request=%s reason=%s", request.schema().name, answer.error)
            return answer
        response: Response = answer
        return response

    def note_leader(self, node_id: int) -> None:
        """Close the connection if its node is not `node_id`, the leader."""
        self._leader.note_leader(node_id)

    def close(self) -> None:
        """Close the connections; calls in flight end with an error."""
        self._leader.close()
