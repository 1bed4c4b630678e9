"""`esker transactions`: list and describe transactions, and abort hanging ones.

Each broker answers for the transactional ids that it should own, so every broker is asked. The
columns are those of Kafka's own `kafka-transactions`.
"""

from __future__ import annotations

import time
from typing import Annotated, Final

import typer

from coordinator.transactions.state import State
from esker.client.client import MAX_INT64, ClientError, KafkaClient, no_such_partition
from esker.commands.base import CommandGroup
from esker.commands.cluster_access import (
    AsJson,
    Server,
    TimeoutMs,
    broker_addresses,
    broker_client,
    fail,
    run_or_fail,
)
from esker.commands.names import topic_argument
from esker.commands.text_tables import show, table
from records.kafka_errors import ErrorCode, error_name
from records.rpc.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

app = CommandGroup("List, describe and abort transactions.")

LIST_EXAMPLE = "Example: esker transactions list --state Ongoing --running-longer-than-ms 60000"
DESCRIBE_EXAMPLE = "Example: esker transactions describe payments-1 --json"
ABORT_EXAMPLE = "Example: esker transactions abort orders --partition 0 --start-offset 1000"
TIMEOUT_MS: Final = 30_000

_Listed = ListTransactionsResponse.TransactionState
_Described = DescribeTransactionsResponse.TransactionState


@app.callback(epilog=LIST_EXAMPLE)
def transactions() -> None:
    """List and describe transactions, and abort hanging ones."""


@app.command(name="list", epilog=LIST_EXAMPLE)
def list_(
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="State of the transactions, such as Ongoing or CompleteAbort; may be repeated; "
            "default: all states.",
        ),
    ] = None,
    running_longer_than_ms: Annotated[
        int,
        typer.Option(
            metavar="MS",
            min=0,
            help="Milliseconds for which the transactions have run at least; default: 0.",
            show_default=False,
        ),
    ] = 0,
    bootstrap_server: Server = None,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = TIMEOUT_MS,
) -> None:
    """Print the transactional ids with their producer ids and states."""
    request = ListTransactionsRequest(
        state_filters=tuple(state or ()),
        producer_id_filters=(),
        duration_filter=running_longer_than_ms or -1,
    )

    async def exchange() -> dict[str, _Listed]:
        async with broker_client(broker_addresses(bootstrap_server), timeout_ms) as client:
            return await client.patiently(lambda: _list(client, request))

    found = run_or_fail(exchange()).values()
    listed = [
        {
            "transactionalId": one.transactional_id,
            "producerId": one.producer_id,
            "state": one.transaction_state,
        }
        for one in found
    ]
    rows = [(one.transactional_id, str(one.producer_id), one.transaction_state) for one in found]
    headings = ("TransactionalId", "ProducerId", "State")
    show({"transactions": listed}, table(headings, rows), as_json=as_json)


async def _list(client: KafkaClient, request: ListTransactionsRequest) -> dict[str, _Listed]:
    """Return the transactions of all brokers by transactional id. Raises ClientError."""
    found: dict[str, _Listed] = {}
    for node in await client.brokers():
        answer = await client.ask(node, request, ListTransactionsResponse)
        if answer.error_code:
            raise ClientError(f"broker {node}: {error_name(answer.error_code)}", answer.error_code)
        if answer.unknown_state_filters:
            unknown, states = answer.unknown_state_filters[0], ", ".join(s.label for s in State)
            raise ClientError(
                f"no such state of a transaction: {unknown}; --state is one of {states}"
            )
        found |= {one.transactional_id: one for one in answer.transaction_states}
    return dict(sorted(found.items()))


@app.command(epilog=DESCRIBE_EXAMPLE)
def describe(
    transactional_id: Annotated[
        str, typer.Argument(metavar="ID", help="Transactional id (transactional.id) of a producer.")
    ],
    bootstrap_server: Server = None,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = TIMEOUT_MS,
) -> None:
    """Print the producer, state, age and partitions of a transactional id's newest transaction."""

    async def exchange() -> _Described:
        async with broker_client(broker_addresses(bootstrap_server), timeout_ms) as client:
            return await client.patiently(lambda: _describe(client, transactional_id))

    found = run_or_fail(exchange())
    if found.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        fail(f"no such transactional id: {transactional_id}; `esker transactions list` prints all")
    if found.error_code:
        fail(f"transactional id {transactional_id}: {error_name(found.error_code)}")
    started_ms = found.transaction_start_time_ms
    age_ms = int(time.time() * 1_000) - started_ms if found.topics else None
    partitions = [(one.topic, index) for one in found.topics for index in one.partitions]
    text = (
        f"TransactionalId: {transactional_id}  State: {found.transaction_state}  "
        f"ProducerId: {found.producer_id}  ProducerEpoch: {found.producer_epoch}  "
        f"TimeoutMs: {found.transaction_timeout_ms}  AgeMs: {'-' if age_ms is None else age_ms}"
    )
    if partitions:
        rows = [(topic, str(index)) for topic, index in partitions]
        text += "\n" + table(("Topic", "Partition"), rows)
    transaction = {
        "transactionalId": transactional_id,
        "state": found.transaction_state,
        "producerId": found.producer_id,
        "producerEpoch": found.producer_epoch,
        "timeoutMs": found.transaction_timeout_ms,
        "startTimeMs": started_ms if found.topics else None,
        "partitions": [{"topic": topic, "partition": index} for topic, index in partitions],
    }
    show(transaction, text, as_json=as_json)


async def _describe(client: KafkaClient, transactional_id: str) -> _Described:
    """Return the description by the broker that owns the id. Raises ClientError."""
    request = DescribeTransactionsRequest(transactional_ids=(transactional_id,))
    for node in await client.brokers():
        answer = await client.ask(node, request, DescribeTransactionsResponse)
        (found,) = answer.transaction_states
        if found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE:
            raise ClientError("the transaction log has no leader", found.error_code)
        if found.error_code != ErrorCode.NOT_COORDINATOR:
            return found
    raise ClientError(
        f"no broker owns transactional id {transactional_id} now", ErrorCode.NOT_COORDINATOR
    )


@app.command(epilog=ABORT_EXAMPLE)
def abort(
    topic: Annotated[str, topic_argument("Name of the topic with the hanging transaction.")],
    partition: Annotated[
        int, typer.Option(min=0, help="Number of the partition of TOPIC in which it is open.")
    ],
    start_offset: Annotated[
        int,
        typer.Option(
            min=0,
            max=MAX_INT64,
            help="Offset of the transaction's first record in the partition, which is its last "
            "stable offset if no earlier transaction is open.",
        ),
    ],
    bootstrap_server: Server = None,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = TIMEOUT_MS,
) -> None:
    """Abort a transaction that is open in a partition and that the transaction log has ended.

    A transaction that still runs is not aborted.
    """

    async def exchange() -> int:
        async with broker_client(broker_addresses(bootstrap_server), timeout_ms) as client:
            return await client.patiently(lambda: _abort(client, topic, partition, start_offset))

    producer_id = run_or_fail(exchange())
    aborted = {
        "topic": topic,
        "partition": partition,
        "startOffset": start_offset,
        "producerId": producer_id,
    }
    text = f"aborted the transaction of producer {producer_id} at {topic}-{partition}"
    show(aborted, text, as_json=as_json)


async def _abort(client: KafkaClient, topic: str, partition: int, start_offset: int) -> int:
    """Abort the transaction that begins at an offset; return its producer id.

    Raises:  ClientError.
    """
    leaders = await client.leaders(topic)
    if partition not in leaders:
        raise ClientError(no_such_partition(topic, partition, leaders))
    node, place = leaders[partition], f"{topic}-{partition}"
    asked = DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=(partition,))
    described = await client.ask(
        node, DescribeProducersRequest(topics=(asked,)), DescribeProducersResponse
    )
    (known,) = described.topics[0].partitions
    if known.error_code:
        raise ClientError(f"{place}: {error_name(known.error_code)}", known.error_code)
    found = next(
        (one for one in known.active_producers if one.current_txn_start_offset == start_offset),
        None,
    )
    if found is None:
        raise ClientError(f"{place} has no open transaction that begins at offset {start_offset}")
    marker = WriteTxnMarkersRequest.WritableTxnMarker
    named = marker.WritableTxnMarkerTopic(name=topic, partition_indexes=(partition,))
    request = WriteTxnMarkersRequest(
        markers=(
            marker(
                producer_id=found.producer_id,
                producer_epoch=found.producer_epoch,
                transaction_result=False,
                topics=(named,),
                coordinator_epoch=max(found.coordinator_epoch, 0),
            ),
        )
    )
    answer = await client.ask(node, request, WriteTxnMarkersResponse)
    code = answer.markers[0].topics[0].partitions[0].error_code
    if code == ErrorCode.INVALID_TXN_STATE:
        raise ClientError(
            f"the transaction of producer {found.producer_id} still runs: end its producer, and "
            "wait for its timeout"
        )
    if code:
        raise ClientError(f"{place}: {error_name(code)}", code)
    return found.producer_id
