"""Kafka's transactions tool finds and aborts a hanging transaction at a broker of ours.

The broker runs in this process, over a cluster in memory: no request of a client makes a
transaction hang, so the test takes its transactional id out of the transaction log.
"""

from __future__ import annotations

import asyncio
from typing import Final

import pytest
from confluent_kafka import Producer

from coordinator.transactions.decide import Decision
from records.transactions import TransactionalIdRemovedRecord
from tests.diskless.broker_world import running_broker
from tests.diskless.cluster_world import ClusterWorld
from tests.interop.kafka_run import Kafka, ToolFailedError
from tests.interop.kafka_tools import CLASSES

pytestmark = [pytest.mark.java, pytest.mark.soak]

ID: Final = "hanging"


def begin(bootstrap: str, now_ms: int) -> Producer:
    """Begin a transaction with one record of this time in t-0."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": ID})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("t", b"hangs", partition=0, timestamp=now_ms)
    assert producer.flush(30) == 0
    return producer


def test_kafkas_transactions_tool_aborts_a_hanging_transaction_and_no_running_one(
    kafka: Kafka,
) -> None:
    async def main() -> None:
        async with ClusterWorld(brokers=()) as world, running_broker(world) as broker:
            await world.finalize(esker_version=4, transaction_version=1)
            await world.create("t")
            at = f"127.0.0.1:{broker.listeners['PLAIN'].port}"

            async def tool(command: str, *words: str) -> str:
                """Run kafka-transactions for t-0; return its output."""
                place = ("--topic", "t", "--partition", "0")
                words = ("--bootstrap-server", at, command, *place, *words)
                ran = await asyncio.to_thread(kafka.run, CLASSES["transactions"], *words)
                return ran.out

            producer = await asyncio.to_thread(begin, at, world.wall_ms())
            with pytest.raises(ToolFailedError, match="Failed to abort transaction"):
                await tool("abort", "--start-offset", "0")  # it runs
            removed = TransactionalIdRemovedRecord(transactional_id=ID, reason=0)
            world.transaction_log.submit(lambda _: Decision((removed,), None), lambda _: None)
            longest = ("--max-transaction-timeout", "0")
            found = await tool("find-hanging", *longest)
            assert [line.split()[:2] for line in found.splitlines()[1:]] == [["t", "0"]], found
            await tool("abort", "--start-offset", "0")
            found = await tool("find-hanging", *longest)
            assert len(found.splitlines()) == 1, found
            del producer

    asyncio.run(main())
