"""`esker transactions`: what it prints for people and programs, and its errors."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from esker.cli import app
from esker.commands import transactions
from records.kafka_errors import ErrorCode
from records.rpc import transactions as rpc

STATE = rpc.DescribeTransactionsResponse.TransactionState


class Client:
    """A client of two brokers, of which the second owns the id `a` and the first all others."""

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def patiently(self, attempt: Callable[[], Awaitable[Any]]) -> Any:
        return await attempt()

    async def brokers(self) -> tuple[int, ...]:
        return (1, 2)

    async def ask(self, node: int, request: Any, _response: Any) -> Any:
        if isinstance(request, rpc.ListTransactionsRequest):
            return self._list(node, request)
        if isinstance(request, rpc.DescribeProducersRequest):
            return self._producers(request)
        if isinstance(request, rpc.WriteTxnMarkersRequest):
            return self._write(node, request)
        (name,) = request.transactional_ids
        code = ErrorCode.NONE if name == "a" else ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        if (node == 2) != (name == "a"):
            code = ErrorCode.NOT_COORDINATOR
        found = STATE(
            error_code=int(code),
            transactional_id=name,
            transaction_state="Ongoing",
            transaction_timeout_ms=60_000,
            transaction_start_time_ms=5,
            producer_id=7,
            producer_epoch=3,
            topics=(STATE.TopicData(topic="orders", partitions=(0, 2)),),
        )
        return rpc.DescribeTransactionsResponse(transaction_states=(found,))

    async def leaders(self, _topic: str) -> dict[int, int]:
        return {0: 1, 1: 2}

    def _producers(self, request: Any) -> Any:
        """Two open transactions in each partition."""
        topic = rpc.DescribeProducersResponse.TopicResponse
        known = topic.PartitionResponse
        producers = tuple(
            known.ProducerState(
                producer_id=producer_id, producer_epoch=3, coordinator_epoch=-1,
                current_txn_start_offset=offset,
            )
            for producer_id, offset in ((7, 40), (8, 50))
        )  # fmt: skip
        found = known(partition_index=0, active_producers=producers)
        return rpc.DescribeProducersResponse(
            topics=(topic(name=request.topics[0].name, partitions=(found,)),)
        )

    def _write(self, node: int, request: Any) -> Any:
        """End the transaction of producer 7 at node 2, and refuse all others."""
        (marker,) = request.markers
        assert (marker.producer_epoch, marker.coordinator_epoch) == (3, 0)
        assert not marker.transaction_result
        ends = (node, marker.producer_id) == (2, 7)
        result = rpc.WriteTxnMarkersResponse.WritableTxnMarkerResult
        topic = result.WritableTxnMarkerTopicResult
        one = topic.WritableTxnMarkerPartitionResult(
            partition_index=1, error_code=0 if ends else ErrorCode.INVALID_TXN_STATE
        )
        written = result(
            producer_id=marker.producer_id, topics=(topic(name="orders", partitions=(one,)),)
        )
        return rpc.WriteTxnMarkersResponse(markers=(written,))

    def _list(self, node: int, request: Any) -> Any:
        one = rpc.ListTransactionsResponse.TransactionState(
            transactional_id="ba"[node - 1], producer_id=6 + node, transaction_state="Ongoing"
        )
        is_known = set(request.state_filters) <= {"Ongoing"}
        return rpc.ListTransactionsResponse(
            unknown_state_filters=() if is_known else request.state_filters,
            transaction_states=(one,) if is_known and request.duration_filter < 60_000 else (),
        )


@pytest.fixture(autouse=True)
def client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "broker_client", lambda *_: Client())


def run(*words: str) -> str:
    """Run the command and return its output."""
    result = CliRunner().invoke(app, ["transactions", *words])
    assert result.exit_code == 0, result.output
    return result.output


def test_transactions_list_prints_the_transactions_of_every_broker_by_id() -> None:
    lines = [line.split() for line in run("list").splitlines()]
    assert ["a", "8", "Ongoing"] in lines
    assert lines.index(["a", "8", "Ongoing"]) + 1 == lines.index(["b", "7", "Ongoing"])
    found = json.loads(run("list", "--json", "--state", "Ongoing"))["transactions"]
    assert found[0] == {"transactionalId": "a", "producerId": 8, "state": "Ongoing"}
    assert not json.loads(run("list", "--json", "--running-longer-than-ms", "60000"))[
        "transactions"
    ]


def test_transactions_list_refuses_an_unknown_state() -> None:
    result = CliRunner().invoke(app, ["transactions", "list", "--state", "Idle"])
    assert result.exit_code == 1
    assert (
        "no such state of a transaction: Idle; --state is one of Empty, Ongoing," in result.output
    )


def test_transactions_describe_prints_the_answer_of_the_broker_that_owns_the_id() -> None:
    text = run("describe", "a")
    assert "State: Ongoing" in text
    assert ["orders", "2"] in [line.split() for line in text.splitlines()]
    found = json.loads(run("describe", "a", "--json"))
    assert (found["producerId"], found["producerEpoch"], found["startTimeMs"]) == (7, 3, 5)
    assert found["partitions"][1] == {"topic": "orders", "partition": 2}


def test_transactions_describe_fails_for_an_id_that_does_not_exist() -> None:
    result = CliRunner().invoke(app, ["transactions", "describe", "none"])
    assert result.exit_code == 1
    assert "no such transactional id: none" in result.output


def test_transactions_abort_ends_the_transaction_that_begins_at_the_offset() -> None:
    words = ("abort", "orders", "--partition", "1", "--start-offset", "40")
    assert "aborted the transaction of producer 7 at orders-1" in run(*words)
    assert json.loads(run(*words, "--json")) == {
        "topic": "orders", "partition": 1, "startOffset": 40, "producerId": 7,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("partition", "offset", "error"),
    [
        (1, 50, "the transaction of producer 8 still runs"),
        (1, 41, "orders-1 has no open transaction that begins at offset 41"),
        (5, 40, "orders has no partition 5"),
    ],
)
def test_transactions_abort_fails_for_a_running_or_absent_transaction(
    partition: int, offset: int, error: str
) -> None:
    words = ("abort", "orders", "--partition", str(partition), "--start-offset", str(offset))
    result = CliRunner().invoke(app, ["transactions", *words])
    assert result.exit_code == 1
    assert error in result.output
