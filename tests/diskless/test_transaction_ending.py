"""The broker waits for a producer while its former transaction is ending."""

from __future__ import annotations

import asyncio

import pytest

from diskless.transactions.ending import PAUSES_S, ask_until_ended
from records.kafka_errors import ErrorCode
from records.rpc.transaction_log import AddTransactionPartitionsResponse
from tests.diskless.virtual_time import run

ENDING = int(ErrorCode.CONCURRENT_TRANSACTIONS)


@pytest.mark.parametrize(
    ("codes", "asked", "waited_s"),
    [
        ([0], 1, 0.0),
        ([ENDING, ENDING, 0], 3, 0.004),
        ([int(ErrorCode.PRODUCER_FENCED)], 1, 0.0),
        ([ENDING] * 20, len(PAUSES_S) + 1, 0.1),
    ],
)
def test_the_broker_asks_again_only_while_the_former_transaction_is_ending(
    codes: list[int], asked: int, waited_s: float
) -> None:
    answers = iter(codes)
    count = 0

    async def ask() -> AddTransactionPartitionsResponse:
        nonlocal count
        count += 1
        return AddTransactionPartitionsResponse(error_code=next(answers), transaction_number=-1)

    async def story() -> float:
        began = asyncio.get_running_loop().time()
        answer = await ask_until_ended(ask)
        assert answer.error_code == codes[count - 1]
        return asyncio.get_running_loop().time() - began

    assert run(story) == pytest.approx(waited_s)
    assert count == asked


@pytest.mark.parametrize(("looks", "waited_s"), [(0, 0.0), (1, 0.002), (3, 0.008), (99, 0.1)])
def test_the_broker_asks_no_leader_while_its_replica_shows_the_transaction_ending(
    looks: int, waited_s: float
) -> None:
    left, count = looks, 0

    def shows_ending() -> bool:
        nonlocal left
        left -= 1
        return left >= 0

    async def ask() -> AddTransactionPartitionsResponse:
        nonlocal count
        count += 1
        return AddTransactionPartitionsResponse(error_code=0, transaction_number=1)

    async def story() -> float:
        began = asyncio.get_running_loop().time()
        await ask_until_ended(ask, shows_ending)
        return asyncio.get_running_loop().time() - began

    assert run(story) == pytest.approx(waited_s)
    assert count == 1
