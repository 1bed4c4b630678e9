"""Forwards administrative requests, so that every tool can be pointed at any broker.

The controller answers what it alone decides: DescribeQuorum of the cluster's own log,
UpdateFeatures, UnregisterBroker. The leader of a batch coordinator describes its topics and
objects, and decides on retention plans and orphans. Topics and brokers are described from the
image.

The trap: a request is forwarded in the newest version that both sides know, and old versions use
other fields for some values. This module translates them in both directions.

Without an answer in time the client gets REQUEST_TIMED_OUT, as from Kafka's brokers.

Source: KIP-590 (forwarding), KIP-584 (UpdateFeatures), KIP-836 (DescribeQuorum); KIP-1163, Command
line tools.
"""

from __future__ import annotations

import asyncio
from typing import Final, TypeVar

import msgspec

from coordinator.batch.calls import CALLS
from coordinator.batch.calls import refuse as refuse_call
from coordinator.controller import descriptions as describing
from coordinator.controller.access import Client
from coordinator.controller.descriptions import describe_brokers
from coordinator.controller.image import MetadataImage
from coordinator.controller.refusals import refuse
from coordinator.errors import CoordinatorError
from diskless.apis.forwarding import BoundedCalls, seconds
from diskless.apis.handler import make_handler
from diskless.cluster import Cluster
from raft.net.handlers import Served
from records.internal_topics import CLUSTER_METADATA
from records.kafka_errors import ErrorCode
from records.rpc import brokers, descriptions, quorum
from records.rpc.base import CoordinatorRequest, Response
from records.types import ZERO_UUID

R = TypeVar("R", bound=Response)
D = TypeVar("D", descriptions.DescribeTopicsResponse, descriptions.DescribeBrokersResponse)

FIRST_WITH_DIRECTORIES: Final = 2  # of DescribeQuorum
FIRST_WITH_UPGRADE_TYPE: Final = 1  # of UpdateFeatures
LAST_WITH_RESULTS: Final = 1
SAFE_DOWNGRADE: Final = 2

SLICE_TOPICS: Final = 20  # described before the loop runs other tasks

_QuorumTopic = quorum.DescribeQuorumResponse.TopicData
_Update = brokers.UpdateFeaturesRequest.FeatureUpdateKey


class Forwarding:
    """Forwards requests for one broker. Belongs to the event loop."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._calls = BoundedCalls()

    async def describe_quorum(
        self, request: quorum.DescribeQuorumRequest, version: int
    ) -> quorum.DescribeQuorumResponse:
        """Forward DescribeQuorum of the cluster log to the controller; refuse all other logs."""
        named = [
            (topic.topic_name, partition.partition_index)
            for topic in request.topics
            for partition in topic.partitions
        ]
        if named != [(CLUSTER_METADATA, 0)]:
            text = f"A broker describes {CLUSTER_METADATA}-0 only: ask a controller."
            return _no_quorum(request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
        try:
            answer = await self._cluster.ask_controller(request, quorum.DescribeQuorumResponse)
        except CoordinatorError as error:
            return quorum.DescribeQuorumResponse(
                error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=error.message, topics=()
            )
        return answer if version >= FIRST_WITH_DIRECTORIES else _without_directories(answer)

    async def update_features(
        self, request: brokers.UpdateFeaturesRequest, version: int, client: Client | None = None
    ) -> brokers.UpdateFeaturesResponse:
        """Forward feature updates to the controller, which applies all of them or none."""
        if version < FIRST_WITH_UPGRADE_TYPE:
            request = msgspec.structs.replace(
                request,  # type: ignore[type-var]
                feature_updates=tuple(_with_type(one) for one in request.feature_updates),
            )
        answer: brokers.UpdateFeaturesResponse | None = None
        message = "No controller answered in time: it is not known whether this was done."
        try:
            answer = await self._calls.within(
                self._cluster.ask_controller(request, brokers.UpdateFeaturesResponse, client),
                seconds(request.timeout_ms),
            )
        except CoordinatorError as error:
            message = error.message
        if answer is None:
            return brokers.UpdateFeaturesResponse(
                error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=message
            )
        if version > LAST_WITH_RESULTS or answer.error_code:
            return answer
        result = brokers.UpdateFeaturesResponse.UpdatableFeatureResult
        return msgspec.structs.replace(
            answer,  # type: ignore[type-var]
            results=tuple(
                result(feature=one.feature, error_message=None) for one in request.feature_updates
            ),
        )

    async def unregister(
        self, request: brokers.UnregisterBrokerRequest, client: Client | None = None
    ) -> brokers.UnregisterBrokerResponse:
        """Forward the unregistration of a permanently removed broker to the controller."""
        try:
            return await self._cluster.ask_controller(
                request, brokers.UnregisterBrokerResponse, client
            )
        except CoordinatorError as error:
            refusal = refuse(request, ErrorCode.REQUEST_TIMED_OUT, error.message)
            assert isinstance(refusal, brokers.UnregisterBrokerResponse), f"{refusal}"
            return refusal

    # --- the image ------------------------------------------------------------------------------

    async def describe_topics(
        self, request: descriptions.DescribeTopicsRequest
    ) -> descriptions.DescribeTopicsResponse:
        """Describe topics from the cluster image, and include the image's age in the response."""
        return self._with_age(await describe_topics(request, self._cluster.image))

    def describe_brokers(
        self, request: descriptions.DescribeBrokersRequest
    ) -> descriptions.DescribeBrokersResponse:
        """Describe brokers from the cluster image, and include the image's age in the response."""
        return self._with_age(describe_brokers(request, self._cluster.image))

    def _with_age(self, answer: D) -> D:
        age_ms = self._cluster.image_age_ms()
        return msgspec.structs.replace(
            answer,  # type: ignore[type-var]
            image_age_ms=-1 if age_ms is None else int(age_ms),
        )

    # --- batch coordinators ---------------------------------------------------------------------

    async def coordinate(self, request: CoordinatorRequest[R]) -> R:
        """Forward the request to the leader of the batch coordinator that the request names."""
        coordinator = request.coordinator_partition
        if not self._exists(coordinator):
            text = f"There is no batch coordinator {coordinator}."
            return refuse_call(request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
        try:
            return await self._cluster.leader(coordinator).call(request)
        except CoordinatorError as error:
            return refuse_call(request, error.code, error.message)

    def _exists(self, coordinator: int) -> bool:
        """Return whether the cluster has this batch coordinator.

        Checked first, because each call opens a connection.
        """
        return 0 <= coordinator < self._cluster.image.coordinator_count


async def describe_topics(
    request: descriptions.DescribeTopicsRequest, image: MetadataImage
) -> descriptions.DescribeTopicsResponse:
    """Describe topics from the cluster image; let other tasks run after every few partitions."""
    requested = request.topic_names
    names = sorted(image.topic_ids if requested is None else set(requested))
    topics: list[descriptions.DescribeTopicsResponse.Topic] = []
    partitions = 0
    for first in range(0, len(names), SLICE_TOPICS):
        chunk = tuple(names[first : first + SLICE_TOPICS])
        answer = describing.describe_topics(
            descriptions.DescribeTopicsRequest(topic_names=chunk), image
        )
        partitions += sum(len(topic.partitions) for topic in answer.topics)
        if answer.error_code or partitions > describing.MAX_PARTITIONS:
            text = f"More than {describing.MAX_PARTITIONS} partitions: ask for topics by name."
            return descriptions.DescribeTopicsResponse(
                error_code=ErrorCode.INVALID_REQUEST, error_message=text
            )
        topics += answer.topics
        await asyncio.sleep(0)
    return descriptions.DescribeTopicsResponse(image_offset=image.offset, topics=tuple(topics))


def _no_quorum(
    request: quorum.DescribeQuorumRequest, code: ErrorCode, message: str
) -> quorum.DescribeQuorumResponse:
    return quorum.DescribeQuorumResponse(
        topics=tuple(
            _QuorumTopic(
                topic_name=topic.topic_name,
                partitions=tuple(
                    _QuorumTopic.PartitionData(
                        partition_index=partition.partition_index,
                        error_code=code,
                        error_message=message,
                        leader_id=-1,
                        leader_epoch=-1,
                        high_watermark=-1,
                        current_voters=(),
                        observers=(),
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _without_directories(answer: quorum.DescribeQuorumResponse) -> quorum.DescribeQuorumResponse:
    """Return the response without directory ids and endpoints, as in versions 0 and 1."""

    def plain(replicas: tuple[quorum.ReplicaState, ...]) -> tuple[quorum.ReplicaState, ...]:
        return tuple(
            msgspec.structs.replace(one, replica_directory_id=ZERO_UUID)  # type: ignore[type-var]
            for one in replicas
        )

    return quorum.DescribeQuorumResponse(
        error_code=answer.error_code,
        topics=tuple(
            _QuorumTopic(
                topic_name=topic.topic_name,
                partitions=tuple(
                    msgspec.structs.replace(
                        partition,  # type: ignore[type-var]
                        current_voters=plain(partition.current_voters),
                        observers=plain(partition.observers),
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in answer.topics
        ),
    )


def _with_type(requested: _Update) -> _Update:
    """Convert `allow_downgrade` of UpdateFeatures version 0 to a later version's upgrade type."""
    if not requested.allow_downgrade:
        return requested
    return msgspec.structs.replace(
        requested,  # type: ignore[type-var]
        allow_downgrade=False,
        upgrade_type=SAFE_DOWNGRADE,
    )


def handlers(cluster: Cluster) -> dict[int, Served]:
    """Return the handlers of the forwarded requests, by api key."""
    forwarding = Forwarding(cluster)
    return {
        55: make_handler(
            quorum.DescribeQuorumRequest,
            lambda request, context: forwarding.describe_quorum(request, context.version),
        ),
        57: make_handler(
            brokers.UpdateFeaturesRequest,
            lambda request, context: forwarding.update_features(
                request, context.version, context.client
            ),
        ),
        64: make_handler(
            brokers.UnregisterBrokerRequest,
            lambda request, context: forwarding.unregister(request, context.client),
        ),
        **{
            call.api_key: make_handler(
                call.request, lambda request, _: forwarding.coordinate(request)
            )
            for call in CALLS
            if call.for_clients
        },
        1112: make_handler(
            descriptions.DescribeTopicsRequest,
            lambda request, _: forwarding.describe_topics(request),
            in_line=True,
        ),
        1113: make_handler(
            descriptions.DescribeBrokersRequest,
            lambda request, _: forwarding.describe_brokers(request),
        ),
    }
