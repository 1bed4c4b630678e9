"""Creates topics that clients request metadata of: `auto.create.topics.enable`.

A client that produces to a topic requests its metadata first, and that creates the topic. Kafka
answers at once that there is no leader yet, and clients retry after a pause and a warning. Here the
answer waits a little: most topics exist in a tenth of a second, at their batch coordinator and at
this broker, and the first answer is usable. If it takes longer, the answer is LEADER_NOT_AVAILABLE,
and the creation continues.

A thousand clients that name one topic cause one request. Clients choose the names, so the number of
topics being created at once has a limit; past it, clients are codes to retry.

Source: upstream's AutoTopicCreationManager; KIP-487 (clients may ask not to).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final

from coordinator.controller.access import Client
from coordinator.controller.decide.topics import check_topic_name
from coordinator.controller.errors import RefusedError
from diskless.cluster import Cluster
from records.internal_topics import INTERNAL_TOPICS
from records.kafka_errors import ErrorCode
from records.rpc.topics import CreateTopicsRequest, CreateTopicsResponse

log = logging.getLogger("diskless.topics")

WAIT_S: Final = 3.0  # of a Metadata request, which holds up those behind it on its connection
CREATE_TIMEOUT_MS: Final = 30_000
MAX_UNDER_WAY: Final = 200  # topics being created at the same time

RESERVED: Final = INTERNAL_TOPICS | {"__transaction_state", "__share_group_state"}
"""Names that are never created for a client: internal topics of Kafka and of Esker."""

_FINAL: Final = frozenset(
    {
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.POLICY_VIOLATION,
    }
)
"""Errors that a retry does not change, so that clients get them as they are."""

CreateTopics = Callable[[CreateTopicsRequest, Client | None], Awaitable[CreateTopicsResponse]]
"""Creates topics for a client and returns when this broker sees them (`diskless.apis.topics`)."""


def check_name(name: str) -> ErrorCode:
    """Return INVALID_TOPIC_EXCEPTION for an invalid name, else UNKNOWN_TOPIC_OR_PARTITION."""
    try:
        check_topic_name(name)
    except RefusedError:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class AutoCreation:
    """Creates missing topics for one broker. Belongs to the event loop."""

    def __init__(self, cluster: Cluster, create: CreateTopics, *, num_partitions: int) -> None:
        self._cluster = cluster
        self._create = create
        self._num_partitions = num_partitions
        self._under_way: dict[str, asyncio.Task[Mapping[str, int]]] = {}
        self.created = 0  # topics, by this broker

    async def create_missing(
        self, names: Collection[str], *, create: bool, client: Client | None = None
    ) -> dict[str, int]:
        """Create the missing topics that may be created, and wait briefly until they exist.

        Returns the error code of each topic that does not exist afterwards.

        Args:  create: whether to create topics; otherwise this only finds the error codes.
               client: for whom topics are created; None: this broker.
        """
        errors: dict[str, int] = {name: check_name(name) for name in names}
        wanted = [
            name
            for name in names
            if errors[name] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and name not in RESERVED
        ]
        if create and wanted:
            self._begin([name for name in wanted if name not in self._under_way], client)
            tasks = {self._under_way[name] for name in wanted if name in self._under_way}
            if tasks:
                await asyncio.wait(tasks, timeout=WAIT_S)
            codes: dict[str, int] = {}
            for task in tasks:
                if task.done() and not task.cancelled():
                    codes |= task.result()
            for name in wanted:
                code = codes.get(name, 0)
                errors[name] = code if code in _FINAL else ErrorCode.LEADER_NOT_AVAILABLE
        image = self._cluster.image
        return {name: code for name, code in errors.items() if image.topic(name) is None}

    def _begin(self, names: list[str], client: Client | None) -> None:
        """Start one task that creates these topics, up to the limit of topics under creation."""
        names = names[: max(0, MAX_UNDER_WAY - len(self._under_way))]
        if not names:
            return
        task = asyncio.get_running_loop().create_task(self._create_topics(names, client))
        self._under_way |= dict.fromkeys(names, task)
        task.add_done_callback(lambda _: self._forget(names))

    def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            del self._under_way[name]

    async def _create_topics(
        self, names: Iterable[str], client: Client | None
    ) -> Mapping[str, int]:
        """Create topics and return each topic's error code; 0 also for an existing topic."""
        topic = CreateTopicsRequest.CreatableTopic
        request = CreateTopicsRequest(
            topics=tuple(
                topic(
                    name=name,
                    num_partitions=self._num_partitions,
                    replication_factor=-1,
                    assignments=(),
                    configs=(),
                )
                for name in names
            ),
            timeout_ms=CREATE_TIMEOUT_MS,
            validate_only=False,
        )
        answer = await self._create(request, client)
        codes = {}
        for result in answer.topics:
            codes[result.name] = (
                0 if result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS else result.error_code
            )
            if not result.error_code:
                self.created += 1
                log.info("topic=%s reason=auto_create id=%s", result.name, result.topic_id)
            elif codes[result.name]:
                log.warning(
                    "topic=%s reason=auto_create error=%d message=%r",
                    result.name, result.error_code, result.error_message,
                )  # fmt: skip
        existing = [name for name, code in codes.items() if not code]
        await self._cluster.image_where(
            lambda image: all(image.topic(name) is not None for name in existing), WAIT_S
        )
        return codes

    async def close(self) -> None:
        """Cancel all topic creations; waiting clients get a retriable error."""
        for task in set(self._under_way.values()):
            task.cancel()
        await asyncio.gather(*set(self._under_way.values()), return_exceptions=True)
