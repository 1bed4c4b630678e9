"""Requests about quotas at a broker. Kafka's answers: tests/interop/test_quota_answers.py."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.errors import CoordinatorError
from diskless.apis import quotas
from records.kafka_errors import ErrorCode
from records.rpc.security import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasResponse,
)
from tests.diskless.calling import call
from tests.diskless.cluster_world import ClusterWorld
from tests.diskless.virtual_time import run
from tests.interop.quota_table import ANN, APP, alter, describe

KEY = "producer_byte_rate"


def test_very_many_quotas_are_described_without_holding_up_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[object] = []

    async def in_thread(function, *arguments):  # type: ignore[no-untyped-def]
        threads.append(function)
        return await asyncio.to_thread(function, *arguments)

    monkeypatch.setattr(quotas, "in_thread", in_thread)
    monkeypatch.setattr(quotas, "MANY_QUOTAS", 20)

    async def story() -> None:
        async with ClusterWorld() as world:
            handlers = quotas.handlers(world.cluster(1))
            for count in (20, 21):
                entries = (((("user", str(number)),), ((KEY, 5.0),)) for number in range(count))
                await world.ask(alter(*entries), AlterClientQuotasResponse)
                found = await call(handlers, describe(), DescribeClientQuotasResponse, 1)
                assert len(found.entries or ()) == count
                assert len(threads) == count - 20

    asyncio.run(story())


def test_an_answer_waits_until_this_brokers_image_shows_the_quotas() -> None:
    async def story() -> None:
        async with ClusterWorld() as world:
            cluster = world.cluster(1)
            handlers = quotas.handlers(cluster)
            cluster.pause()
            change = alter((ANN, ((KEY, 5.0),)), (APP, ((KEY, None), ("bytes", 1.0))))
            asked = asyncio.ensure_future(call(handlers, change, AlterClientQuotasResponse, 1))
            await asyncio.sleep(0.1)
            assert not asked.done()
            cluster.go_on()
            answer = await asked
            codes = [entry.error_code for entry in answer.entries]
            assert codes == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
            assert cluster.image.security.quotas[ANN, KEY].value == 5.0

    run(story)


def test_changes_of_quotas_time_out_without_a_controller() -> None:
    class NoController:
        async def ask_controller(self, *_: object) -> None:
            raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no controller answers")

    async def story() -> None:
        change: AlterClientQuotasRequest = alter((ANN, ((KEY, 5.0),)))
        handlers = quotas.handlers(NoController())  # type: ignore[arg-type]
        answer = await call(handlers, change, AlterClientQuotasResponse, 1)
        (entry,) = answer.entries
        assert (entry.error_code, entry.entity[0].entity_name) == (7, "ann")

    run(story)
