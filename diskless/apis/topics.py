"""Creates, grows and deletes topics: the controller decides, and the answer waits for this broker.

The controller answers once the batch coordinators know new partitions. The client then often
produces to them at once, through this broker, which follows both logs and may lag a moment. So the
answer waits until this broker's image and its replicas have them too, for as long as the request
allows; after that the topic's error is REQUEST_TIMED_OUT, as in Kafka, and the decision stands.

Deletion waits for the image only: a topic that is not in it is not served.

Source: KIP-4, KIP-195, KIP-516 (deletion by id), KIP-590 (forwarding);
docs/design/controller.md#hand-over-between-groups, docs/design/broker.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, TypeVar
from uuid import UUID

import msgspec

from coordinator.controller.access import Client
from coordinator.controller.image import TopicImage
from coordinator.controller.refusals import refuse
from coordinator.errors import CoordinatorError
from diskless.apis.forwarding import BoundedCalls, seconds
from diskless.apis.handler import make_handler
from diskless.cluster import Cluster
from diskless.fetch.commit_notifications import CommitNotifications
from raft.net.handlers import Served
from records.kafka_errors import ErrorCode
from records.rpc import topics as rpc
from records.rpc.base import Request, Response
from records.rpc.batch_coordinator import FindBatchesRequest

R = TypeVar("R", bound=Response)

CONTROLLERS_SHARE: Final = 0.9
"""The controller's share of a request's timeout: it knows the result, so it must time out first."""

LOOK_AGAIN_S: Final = 0.1

_NO_ANSWER: Final = "No controller answered in time: it is not known whether this was done."
_NOT_VISIBLE: Final = "It is done, but this broker does not show it yet."


class Topics:
    """Changes topics for one broker. Belongs to the event loop."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._calls = BoundedCalls()
        self._news = CommitNotifications()
        cluster.on_commit(lambda _: self._news.notify())
        cluster.on_image(lambda _: self._news.notify())

    async def create(
        self, request: rpc.CreateTopicsRequest, client: Client | None = None
    ) -> rpc.CreateTopicsResponse:
        """Create topics; answer once this broker serves the topics, or at the timeout."""
        deadline = _now() + seconds(request.timeout_ms)
        answer = await self._ask(request, rpc.CreateTopicsResponse, deadline, client)
        if request.validate_only:
            return answer
        made = {topic.topic_id: topic for topic in answer.topics if not topic.error_code}
        # A client that may not describe a topic's settings is told no number of partitions.
        counts = {topic_id: max(1, topic.num_partitions) for topic_id, topic in made.items()}
        late = await self._wait_until_served(counts, deadline)
        return msgspec.structs.replace(
            answer,  # type: ignore[type-var]
            topics=tuple(
                _timed_out(topic) if topic.topic_id in late and not topic.error_code else topic
                for topic in answer.topics
            ),
        )

    async def grow(
        self, request: rpc.CreatePartitionsRequest, client: Client | None = None
    ) -> rpc.CreatePartitionsResponse:
        """Add partitions to topics; answer once this broker serves the new partitions."""
        deadline = _now() + seconds(request.timeout_ms)
        answer = await self._ask(request, rpc.CreatePartitionsResponse, deadline, client)
        if request.validate_only:
            return answer
        grown = {result.name for result in answer.results if not result.error_code}
        await self._cluster.image_where(
            lambda image: all(name in image.topic_ids for name in grown), deadline - _now()
        )
        image = self._cluster.image
        counts: dict[UUID, int] = {}
        for requested in request.topics:
            topic = image.topic(requested.name) if requested.name in grown else None
            if topic is not None:  # if a topic is named twice, the first count applies
                counts.setdefault(topic.topic_id, requested.count)
        late = await self._wait_until_served(counts, deadline)
        names = {topic.name for t in late if (topic := self._cluster.image.topics.get(t))}
        return msgspec.structs.replace(
            answer,  # type: ignore[type-var]
            results=tuple(
                _timed_out(result) if result.name in names and not result.error_code else result
                for result in answer.results
            ),
        )

    async def delete(
        self, request: rpc.DeleteTopicsRequest, client: Client | None = None
    ) -> rpc.DeleteTopicsResponse:
        """Delete topics by name or by id."""
        deadline = _now() + seconds(request.timeout_ms)
        state = rpc.DeleteTopicsRequest.DeleteTopicState
        by_name = tuple(state(name=name) for name in request.topic_names)
        requested = rpc.DeleteTopicsRequest(
            topics=(*by_name, *request.topics), timeout_ms=request.timeout_ms
        )
        answer = await self._ask(requested, rpc.DeleteTopicsResponse, deadline, client)
        gone = {result.topic_id for result in answer.responses if not result.error_code}
        await self._cluster.image_where(
            lambda image: gone.isdisjoint(image.topics), max(0.0, deadline - _now())
        )
        late = gone & set(self._cluster.image.topics)
        return msgspec.structs.replace(
            answer,  # type: ignore[type-var]
            responses=tuple(
                _timed_out(result) if result.topic_id in late and not result.error_code else result
                for result in answer.responses
            ),
        )

    # --- the controller -------------------------------------------------------------------------

    async def _ask(
        self, request: Request, response: type[R], deadline: float, client: Client | None
    ) -> R:
        """Forward a request to the controller; at the deadline, answer a timeout for each topic."""
        left_s = deadline - _now()
        forwarded = msgspec.structs.replace(
            request,  # type: ignore[type-var]
            timeout_ms=int(1_000 * left_s * CONTROLLERS_SHARE),
        )
        try:
            answer = await self._calls.within(
                self._cluster.ask_controller(forwarded, response, client), left_s
            )
        except CoordinatorError:
            answer = None
        if answer is None:
            refusal = refuse(request, ErrorCode.REQUEST_TIMED_OUT, _NO_ANSWER)
            assert isinstance(refusal, response), f"{type(refusal)} for {type(request)}"
            return refusal
        return answer

    # --- this broker's view ---------------------------------------------------------------------

    async def _wait_until_served(self, counts: Mapping[UUID, int], deadline: float) -> set[UUID]:
        """Wait until this broker serves the new partitions; return the topics that are late.

        Waits for one topic after the other, so that each notification costs one check.
        """
        waiting = deque(counts)
        seen: set[UUID] = set()
        while waiting:
            if await self._is_served(waiting[0], counts[waiting[0]], seen):
                waiting.popleft()
                continue
            left_s = deadline - _now()
            if left_s <= 0:
                break
            await self._news.wait(min(left_s, LOOK_AGAIN_S))
        return {late for late in waiting if not await self._is_served(late, counts[late], seen)}

    async def _is_served(self, topic_id: UUID, count: int, seen: set[UUID]) -> bool:
        """Return whether this broker serves `count` partitions of the topic.

        True also for a topic that was deleted.
        """
        topic = self._cluster.image.topics.get(topic_id)
        if topic is None:
            return topic_id in seen
        seen.add(topic_id)
        if len(topic.partitions) < count:
            return False
        return topic.is_internal or await self._in_replicas(topic)  # the quorum's have no batches

    async def _in_replicas(self, topic: TopicImage) -> bool:
        """Return whether this broker's coordinator replicas have all partitions of the topic.

        Compares only the highest partition of each coordinator.
        """
        last: dict[int, int] = {}
        indexes = topic.partitions if topic.coordinators else (len(topic.partitions) - 1,)
        for index in indexes:
            coordinator = topic.coordinator(index)
            last[coordinator] = max(index, last.get(coordinator, 0))
        for coordinator, index in last.items():
            if not await self._in_replica(topic.topic_id, coordinator, index):
                return False
        return True

    async def _in_replica(self, topic_id: UUID, coordinator: int, index: int) -> bool:
        replica = self._cluster.replica(coordinator)
        if replica is None:
            return False
        topic = FindBatchesRequest.Topic
        partition = topic.Partition(partition_index=index, offset=0, max_bytes=0)
        request = FindBatchesRequest(
            coordinator_partition=coordinator,
            topics=(topic(topic_id=topic_id, partitions=(partition,)),),
            max_bytes=0,
        )
        try:
            answer = await replica.call(request)
        except CoordinatorError:
            return False
        code = answer.responses[0].partitions[0].error_code
        return code in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _timed_out(result: Any) -> Any:
    return msgspec.structs.replace(
        result, error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=_NOT_VISIBLE
    )


def handlers(cluster: Cluster) -> dict[int, Served]:
    """Return the handlers of CreateTopics, DeleteTopics and CreatePartitions, by api key."""
    topics = Topics(cluster)
    return {
        19: make_handler(
            rpc.CreateTopicsRequest, lambda request, context: topics.create(request, context.client)
        ),
        20: make_handler(
            rpc.DeleteTopicsRequest, lambda request, context: topics.delete(request, context.client)
        ),
        37: make_handler(
            rpc.CreatePartitionsRequest,
            lambda request, context: topics.grow(request, context.client),
        ),
    }
