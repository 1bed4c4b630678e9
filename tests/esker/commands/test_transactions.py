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
    assert "no such state of a transaction: Idle" in result.output


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
