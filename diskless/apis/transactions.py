"""Answers requests about transactions: there are none yet.

Source: KIP-664, KIP-994; upstream's TransactionCoordinator (handleListTransactions,
handleDescribeTransactions).
"""

from __future__ import annotations

import re
from typing import Final

from diskless.apis.handler import make_handler
from raft.net.handlers import Served
from records.kafka_errors import ErrorCode
from records.rpc import transactions as rpc

STATES: Final = frozenset(
    {
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    }
)
"""The names of a transaction's states. Source: upstream's TransactionState."""

MAX_IDS: Final = 10_000
"""Transactional ids of one request; of more, so many are answered with POLICY_VIOLATION."""

MAX_PATTERN: Final = 1_000  # characters

_State = rpc.DescribeTransactionsResponse.TransactionState


def list_transactions(request: rpc.ListTransactionsRequest) -> rpc.ListTransactionsResponse:
    """Return no transactions and the unknown state filters, or an error for invalid filters."""
    code = ErrorCode.NONE
    if not _is_pattern(request.transactional_id_pattern or ""):
        code = ErrorCode.INVALID_REGULAR_EXPRESSION
    elif len(request.state_filters) > MAX_IDS:
        code = ErrorCode.POLICY_VIOLATION
    unknown = () if code else dict.fromkeys(s for s in request.state_filters if s not in STATES)
    return rpc.ListTransactionsResponse(
        error_code=code, unknown_state_filters=tuple(unknown), transaction_states=()
    )


def _is_pattern(text: str) -> bool:
    if len(text) > MAX_PATTERN:
        return False
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def describe_transactions(
    request: rpc.DescribeTransactionsRequest,
) -> rpc.DescribeTransactionsResponse:
    """Answer that each transactional id is unknown."""
    too_many = len(request.transactional_ids) > MAX_IDS
    return rpc.DescribeTransactionsResponse(
        transaction_states=tuple(
            _State(
                error_code=ErrorCode.POLICY_VIOLATION if too_many else _code(transactional_id),
                transactional_id=transactional_id,
                transaction_state="",
                transaction_timeout_ms=0,
                transaction_start_time_ms=0,
                producer_id=0,
                producer_epoch=0,
                topics=(),
            )
            for transactional_id in request.transactional_ids[:MAX_IDS]
        )
    )


def _code(transactional_id: str) -> ErrorCode:
    if not transactional_id:
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def handlers() -> dict[int, Served]:
    """Return the handlers of requests about transactions, by api key."""
    return {
        65: make_handler(
            rpc.DescribeTransactionsRequest, lambda request, _: describe_transactions(request)
        ),
        66: make_handler(
            rpc.ListTransactionsRequest, lambda request, _: list_transactions(request)
        ),
    }
