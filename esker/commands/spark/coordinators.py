"""Reaches the coordinators that apply a plan, through controllers or through brokers.

    async with coordinators(at, timeout_ms) as coordinator:
        await apply_plan(plan, journal, coordinator)

A coordinator's client finds its leader, and stays open until the plan is applied. A broker finds
the leader itself, so each request may go to any broker.

Source: docs/design/pipeline.md#applying-a-plan.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from coordinator.batch.calls import call_of
from coordinator.batch.client import ClientSettings, CoordinatorClient
from coordinator.errors import CoordinatorError
from esker.client.client import ClientError, KafkaClient
from esker.commands.cluster_access import Target
from records.kafka_errors import ErrorCode
from records.rpc.base import CoordinatorRequest, Response

R = TypeVar("R", bound=Response)


@asynccontextmanager
async def coordinators(
    at: Target, timeout_ms: int
) -> AsyncIterator[Callable[[int], CoordinatorClient | ThroughBrokers]]:
    """Yield a function that returns the batch coordinator of a `__diskless-metadata` partition."""
    addresses = [(address.host, address.port) for address in at.addresses]
    clients: dict[int, CoordinatorClient] = {}

    def coordinator(number: int) -> CoordinatorClient | ThroughBrokers:
        if at.brokers:
            return ThroughBrokers(at, timeout_ms)
        if number not in clients:
            patience = ClientSettings(timeout_ms=timeout_ms)
            clients[number] = CoordinatorClient(addresses, partition=number, settings=patience)
        return clients[number]

    try:
        yield coordinator
    finally:
        for client in clients.values():
            await client.close()


class ThroughBrokers:
    """Reaches every coordinator through a broker."""

    def __init__(self, at: Target, timeout_ms: int) -> None:
        self._at = at
        self._timeout_ms = timeout_ms

    async def call(self, request: CoordinatorRequest[R]) -> R:
        """Send the request to any broker, which forwards it to the coordinator's leader.

        Only calls that the table opens to clients are forwarded.
        """
        response = call_of(request).response
        try:
            async with KafkaClient(self._at.addresses, timeout_ms=self._timeout_ms) as client:
                return await client.patiently(lambda: client.ask_any(request, response))
        except ClientError as error:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            raise CoordinatorError(code, str(error)) from error
