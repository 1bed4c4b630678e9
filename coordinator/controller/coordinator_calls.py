"""The controller's calls to batch coordinators, made through their clients.

`handover` is free of asyncio: it passes callbacks. Here each call becomes a task on the loop that
awaits a client (`coordinator.batch.client`), which finds the coordinator's leader and retries by
itself for a while.

Source: KIP-1164.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, TypeVar
from uuid import UUID

from coordinator.batch.interface import BatchCoordinator
from coordinator.controller.reconciliation import HostedPartitions
from coordinator.errors import CoordinatorError
from records.kafka_errors import ErrorCode
from records.rpc.batch_coordinator import (
    DeleteDisklessTopicsRequest,
    DeleteDisklessTopicsResponse,
    InitDisklessTopicsRequest,
    InitDisklessTopicsResponse,
    ListDisklessOffsetsRequest,
    ReleaseDisklessPartitionsRequest,
)
from records.rpc.objects import DescribeDisklessTopicsRequest
from records.types import Epoch, Offset

log = logging.getLogger("coordinator.controller")

EARLIEST: Final = -2

T = TypeVar("T")


class ClientCalls:
    """Implements `handover.CoordinatorCalls` with clients; belongs to the running loop."""

    def __init__(self, client: Callable[[int], BatchCoordinator]) -> None:
        """Prepare calls to batch coordinators; each coordinator's client is created on first use.

        Args:  client: makes the client of one coordinator; called once for each.
        """
        self._make = client
        self._clients: dict[int, BatchCoordinator] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def init(
        self,
        coordinator: int,
        request: InitDisklessTopicsRequest,
        done: Callable[[InitDisklessTopicsResponse | CoordinatorError], None],
    ) -> None:
        """Send InitDisklessTopics to a batch coordinator; call `done` with the response."""
        self._run(self._client(coordinator).call(request), done)

    def delete(
        self,
        coordinator: int,
        request: DeleteDisklessTopicsRequest,
        done: Callable[[DeleteDisklessTopicsResponse | CoordinatorError], None],
    ) -> None:
        """Send DeleteDisklessTopics to a batch coordinator; call `done` with the response."""
        self._run(self._client(coordinator).call(request), done)

    def hosted(
        self, coordinator: int, done: Callable[[HostedPartitions | CoordinatorError], None]
    ) -> None:
        """Request the list of a batch coordinator's partitions; call `done` with the list."""
        self._run(self._hosted(coordinator), done)

    async def _hosted(self, coordinator: int) -> HostedPartitions:
        request = DescribeDisklessTopicsRequest(
            coordinator_partition=coordinator, include_objects=False, behind_barrier=True
        )
        answer = await self._client(coordinator).call(request)
        if answer.error_code:
            raise CoordinatorError(ErrorCode(answer.error_code), answer.error_message or "")
        return {
            topic.topic_id: frozenset(found.partition_index for found in topic.partitions)
            for topic in answer.topics
            if not topic.error_code
        }

    def release(
        self,
        coordinator: int,
        epoch: Epoch,
        topic_id: UUID,
        partitions: frozenset[int],
        done: Callable[[frozenset[int] | CoordinatorError], None],
    ) -> None:
        """Send ReleaseDisklessPartitions for a topic; call `done` with the released partitions."""
        self._run(self._release(coordinator, epoch, topic_id, sorted(partitions)), done)

    async def _release(
        self, coordinator: int, epoch: Epoch, topic_id: UUID, partitions: list[int]
    ) -> frozenset[int]:
        topic = ReleaseDisklessPartitionsRequest.Topic
        named = tuple(topic.Partition(partition_index=index) for index in partitions)
        request = ReleaseDisklessPartitionsRequest(
            coordinator_partition=coordinator,
            controller_epoch=epoch,
            topics=(topic(topic_id=topic_id, partitions=named),),
        )
        answer = await self._client(coordinator).call(request)
        results = [
            result for topic_result in answer.responses for result in topic_result.partitions
        ]
        if any(result.error_code == ErrorCode.STALE_CONTROLLER_EPOCH for result in results):
            raise CoordinatorError(ErrorCode.STALE_CONTROLLER_EPOCH, "a newer controller called")
        return frozenset(result.partition_index for result in results if not result.error_code)

    def log_starts(
        self,
        coordinator: int,
        partitions: Iterable[tuple[UUID, int]],
        done: Callable[[Mapping[tuple[UUID, int], Offset] | CoordinatorError], None],
    ) -> None:
        """Read log start offsets from a batch coordinator; call `done` with the offsets."""
        self._run(self._log_starts(coordinator, list(partitions)), done)

    async def _log_starts(
        self, coordinator: int, partitions: list[tuple[UUID, int]]
    ) -> Mapping[tuple[UUID, int], Offset]:
        topic = ListDisklessOffsetsRequest.Topic
        by_topic: dict[UUID, list[int]] = {}
        for topic_id, index in partitions:
            by_topic.setdefault(topic_id, []).append(index)
        request = ListDisklessOffsetsRequest(
            coordinator_partition=coordinator,
            topics=tuple(
                topic(
                    topic_id=topic_id,
                    partitions=tuple(
                        topic.Partition(partition_index=index, timestamp=EARLIEST)
                        for index in indexes
                    ),
                )
                for topic_id, indexes in by_topic.items()
            ),
        )
        answer = await self._client(coordinator).call(request)
        return {
            (listed.topic_id, found.partition_index): Offset(found.offset)
            for listed in answer.responses
            for found in listed.partitions
            if not found.error_code
        }

    async def close(self) -> None:
        """Cancel the calls in flight and close the clients of the batch coordinators."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in self._clients.values():
            await client.close()
        self._clients.clear()

    def _client(self, coordinator: int) -> BatchCoordinator:
        if coordinator not in self._clients:
            self._clients[coordinator] = self._make(coordinator)
        return self._clients[coordinator]

    def _run(self, call: Awaitable[T], done: Callable[[T | CoordinatorError], Any]) -> None:
        async def run() -> None:
            try:
                answer: T | CoordinatorError = await call
            except CoordinatorError as error:
                answer = error
            except AssertionError:
                raise
            except Exception as error:  # a call without a result would block the outbox
                log.warning("call=%s error=%s", type(error).__name__, error)
                answer = CoordinatorError(ErrorCode.REQUEST_TIMED_OUT, str(error))
            done(answer)

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            task.get_loop().call_exception_handler(
                {"message": "a coordinator's answer", "exception": task.exception()}
            )
