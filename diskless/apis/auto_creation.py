"""Topics that exist because somebody asked about them: `auto.create.topics.enable`.

A client that produces to a topic asks for its metadata first, and that makes the topic. Kafka
answers at once that there is no leader yet, and clients ask again after a pause and a warning. Here
the answer waits a little: most topics are there in a tenth of a second, at their batch coordinator
and at this broker, and the first answer is a good one. What takes longer is LEADER_NOT_AVAILABLE,
and goes on being created.

A thousand clients that ask about one topic make one request. Names are clients' own words, so how
many are under way at once has a limit; past it, clients are told to ask again.

Source: upstream's AutoTopicCreationManager; KIP-487 (clients may ask not to).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final

from coordinator.controller.decide.topics import check_topic_name
from coordinator.controller.errors import RefusedError
from coordinator.controller.image import INTERNAL_TOPICS
from diskless.cluster import Cluster
from records.kafka_errors import ErrorCode
from records.rpc.topics import CreateTopicsRequest, CreateTopicsResponse

log = logging.getLogger("diskless.topics")

WAIT_S: Final = 3.0  # of a Metadata request, which holds up those behind it on its connection
CREATE_TIMEOUT_MS: Final = 30_000
MAX_UNDER_WAY: Final = 200  # topics

RESERVED: Final = INTERNAL_TOPICS | {"__transaction_state", "__share_group_state"}
"""Never made for a client: Kafka's own internal topics, and ours."""

_TOLD: Final = frozenset(
    {
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.POLICY_VIOLATION,
    }
)
"""What asking again will not change."""

Create = Callable[[CreateTopicsRequest], Awaitable[CreateTopicsResponse]]
"""Create topics, and answer when this broker sees them (`diskless.apis.topics`)."""


def check_name(name: str) -> ErrorCode:
    """Why a topic that is not there is not there: nobody made it, or nobody ever can."""
    try:
        check_topic_name(name)
    except RefusedError:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class AutoCreation:
    """See the module. One for a broker; belongs to the event loop."""

    def __init__(self, cluster: Cluster, create: Create, *, num_partitions: int) -> None:
        self._cluster = cluster
        self._create = create
        self._num_partitions = num_partitions
        self._under_way: dict[str, asyncio.Task[Mapping[str, int]]] = {}
        self.created = 0  # topics, by this broker

    async def missing(self, names: Collection[str], *, create: bool) -> dict[str, int]:
        """Make what of these may be made; the error code of each that is not here after a while.

        Args:  create: whether anything is to be made; otherwise this only finds the codes.
        """
        errors: dict[str, int] = {name: check_name(name) for name in names}
        wanted = [
            name
            for name in names
            if errors[name] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and name not in RESERVED
        ]
        if create and wanted:
            self._begin([name for name in wanted if name not in self._under_way])
            tasks = {self._under_way[name] for name in wanted if name in self._under_way}
            if tasks:
                await asyncio.wait(tasks, timeout=WAIT_S)
            told: dict[str, int] = {}
            for task in tasks:
                if task.done() and not task.cancelled():
                    told |= task.result()
            for name in wanted:
                code = told.get(name, 0)
                errors[name] = code if code in _TOLD else ErrorCode.LEADER_NOT_AVAILABLE
        image = self._cluster.image
        return {name: code for name, code in errors.items() if image.topic(name) is None}

    def _begin(self, names: list[str]) -> None:
        """Create these, as many as may be under way, with one request."""
        names = names[: max(0, MAX_UNDER_WAY - len(self._under_way))]
        if not names:
            return
        task = asyncio.get_running_loop().create_task(self._make(names))
        self._under_way |= dict.fromkeys(names, task)
        task.add_done_callback(lambda _: self._over(names))

    def _over(self, names: Iterable[str]) -> None:
        for name in names:
            del self._under_way[name]

    async def _make(self, names: Iterable[str]) -> Mapping[str, int]:
        """The error code of each; 0 also of what somebody else made in the meantime."""
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
        answer = await self._create(request)
        told = {}
        for result in answer.topics:
            told[result.name] = (
                0 if result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS else result.error_code
            )
            if not result.error_code:
                self.created += 1
                log.info("topic=%s reason=auto_create id=%s", result.name, result.topic_id)
            elif told[result.name]:
                log.warning(
                    "topic=%s reason=auto_create error=%d message=%r",
                    result.name, result.error_code, result.error_message,
                )  # fmt: skip
        existing = [name for name, code in told.items() if not code]
        await self._cluster.image_where(
            lambda image: all(image.topic(name) is not None for name in existing), WAIT_S
        )
        return told

    async def close(self) -> None:
        """Whoever waits is told to ask again."""
        for task in set(self._under_way.values()):
            task.cancel()
        await asyncio.gather(*set(self._under_way.values()), return_exceptions=True)
