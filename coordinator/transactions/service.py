"""The transaction log's requests on a quorum node's listener.

Answers that rest on no record of their own, and every proof, pass the read barrier: a node that was
deposed and does not know it must not answer that a transaction is ongoing or that a broker owns no
id. A request that wrote a record needs no barrier: a majority holds the record.

Source: docs/design/quorum.md#linearizable-reads, docs/design/transactions.md#requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from coordinator.errors import CoordinatorError
from coordinator.transactions.decide import check, describe
from coordinator.transactions.leader import Decided, TransactionLog
from raft.interfaces import NotLeaderError
from raft.net.connection import Answer, ServerConnection
from raft.net.errors import BadHeaderError
from raft.net.frames import Frame, Payload
from raft.net.handlers import Serve, Served, payload
from raft.net.header import RequestHeader
from records.codec import decode_message
from records.kafka_errors import ErrorCode
from records.rpc import transaction_log as rpc
from records.rpc.base import Request

MAX_CALL_BYTES: Final = 4 * 1024 * 1024
"""The longest request that is decoded: 10,000 partitions, each of a topic with the longest name. A
longer one closes its connection."""

MAX_DESCRIBED: Final = 1_000
"""Transactional ids in one DescribeTransactionalIds."""

CALLS: Final[dict[type[Request], Any]] = {
    rpc.AcquireTransactionalIdRequest: rpc.AcquireTransactionalIdResponse,
    rpc.InitTransactionalIdRequest: rpc.InitTransactionalIdResponse,
    rpc.AddTransactionPartitionsRequest: rpc.AddTransactionPartitionsResponse,
    rpc.EndTransactionRequest: rpc.EndTransactionResponse,
    rpc.ProveTransactionRequest: rpc.ProveTransactionResponse,
    rpc.DescribeTransactionalIdsRequest: rpc.DescribeTransactionalIdsResponse,
    rpc.CheckTransactionRequest: rpc.CheckTransactionResponse,
}
"""Every request of this service, and its response."""

FindTransactionLog = Callable[[], TransactionLog | None]
"""Returns the transaction log on this node, or None if this node has none."""


def transaction_log_handlers(find: FindTransactionLog) -> Mapping[int, Served]:
    """Return the handlers of the transaction log's requests, by api key."""
    handlers = {}
    for request_type in CALLS:
        schema = request_type.schema()
        assert schema.key is not None, f"{schema.name} is no request"
        handlers[schema.key] = Served(
            schema.versions.first, schema.versions.last, _make_handler(request_type, find)
        )
    return handlers


def _make_handler(request_type: type[Request], find: FindTransactionLog) -> Serve:
    def serve(
        connection: ServerConnection,  # noqa: ARG001 (a handler's)
        header: RequestHeader,
        body: Frame,
    ) -> Answer:
        if len(body) > MAX_CALL_BYTES:
            name = request_type.schema().name
            raise BadHeaderError(f"{name} of {len(body)} bytes, the limit is {MAX_CALL_BYTES}")
        request = decode_message(request_type, body, header.api_version)
        return _answer(find(), header, request)

    return serve


async def _answer(
    transactions: TransactionLog | None, header: RequestHeader, request: Request
) -> Payload:
    try:
        if transactions is None:
            raise NotLeaderError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        response = await ask(transactions, request)
    except CoordinatorError as error:
        response = CALLS[type(request)](error_code=int(error.code), error_message=error.message)
    except NotLeaderError as error:
        code = int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        response = CALLS[type(request)](error_code=code, error_message=str(error))
    return payload(header, response)


async def ask(transactions: TransactionLog, request: Request) -> Any:
    """Answer a transaction log request, by a decision or from the state of committed records.

    Raises:  CoordinatorError or NotLeaderError if the outcome is unknown.
    """
    if isinstance(request, rpc.DescribeTransactionalIdsRequest):
        if len(request.transactional_ids) > MAX_DESCRIBED:
            code = int(ErrorCode.INVALID_REQUEST)
            return rpc.DescribeTransactionalIdsResponse(error_code=code)
        await _barrier(transactions)
        return describe(request, transactions.machine.image)
    if isinstance(request, rpc.CheckTransactionRequest):
        await _barrier(transactions)
        return check(request, transactions.machine.image)
    future: asyncio.Future[Decided] = asyncio.get_running_loop().create_future()

    def done(answer: Any) -> None:
        if future.done():
            return  # the connection was closed
        if isinstance(answer, CoordinatorError):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    transactions.ask(request, done)
    decided = await future
    if not decided.wrote:
        await transactions.log.barrier()
    return decided.response


async def _barrier(transactions: TransactionLog) -> None:
    """Wait until the state has every record that a client may know to be committed."""
    offset = await transactions.log.barrier()
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_done() -> None:
        if not future.done():
            future.set_result(None)

    transactions.when_applied(offset, on_done)
    await future
