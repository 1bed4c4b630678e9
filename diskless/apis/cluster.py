"""Answers Metadata, DescribeCluster, DescribeTopicPartitions and FindCoordinator.

    apis = ClusterApis(cluster, create=topics.create, auto_create=True, num_partitions=1)
    handlers |= apis.handlers("PLAINTEXT")

Metadata may create topics (`diskless.apis.auto_creation`); the other requests only read the image.

The coordinator of a group is computed, like the leader of a partition. A batch coordinator
(KIP-1164, key type 3) can be read at any broker; for the node that writes it, this broker asks the
controller. While the cluster's features do not allow transactions, FindCoordinator answers for them
with a code that clients do not retry, so that `initTransactions()` fails at once instead of after a
minute.

Source: KIP-700, KIP-919 (DescribeCluster), KIP-966 (DescribeTopicPartitions), KIP-699
(FindCoordinator); docs/design/numbers.md#findcoordinator-for-batch-coordinators,
docs/design/broker.md#a-broker-names-itself-and-always-somebody.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from typing import Final

from coordinator.controller.access import Access
from coordinator.controller.authorizer import ResourceType
from coordinator.controller.guarding import is_allowed, needs, split
from coordinator.controller.image import MetadataImage
from coordinator.controller.placement import is_known, unfenced_brokers
from coordinator.controller.service import parse_batch_key
from coordinator.errors import CoordinatorError
from coordinator.features import has_transactions
from coordinator.rendezvous import group_broker, transaction_broker
from diskless.apis import describe_partitions as partitions_described
from diskless.apis.auto_creation import AutoCreation, CreateTopics
from diskless.apis.handler import RequestContext, make_handler
from diskless.apis.metadata import (
    NOBODY,
    NOT_ASKED,
    ClientView,
    address,
    cluster_operations,
    controller_of,
    describe,
    may_describe,
    reachable,
    wants_all,
)
from diskless.cluster import Cluster
from diskless.loop_turns import Pace
from diskless.placement import rack_hint
from raft.net.handlers import Served
from records.kafka_errors import ErrorCode
from records.rpc import cluster as rpc
from records.rpc.partitions import DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse
from records.rpc.topics import FindCoordinatorRequest, FindCoordinatorResponse

log = logging.getLogger("diskless.cluster")

GROUP: Final = 0  # FindCoordinator's key types
TRANSACTION: Final = 1
BATCH: Final = 3
FIRST_WITH_KEYS: Final = 4  # of FindCoordinator: many keys at once, and batch coordinators
MAX_KEYS: Final = 10_000
MAX_NAMES: Final = 10_000  # missing topics that one request may create


CREATES: Final = needs(3, ResourceType.TOPIC, 1)
"""The check of a client whose Metadata request creates a topic."""

BROKERS: Final = 1  # DescribeCluster's endpoint types
CONTROLLERS: Final = 2

NO_TRANSACTIONS: Final = "transactions are not supported by this cluster"
MAX_UNKNOWN_RACKS: Final = 100  # counted and logged apart; clients choose these names
OTHER_RACKS: Final = "others"

_Coordinator = FindCoordinatorResponse.Coordinator
_Reason = tuple[int, str]


class ClusterApis:
    """Answers these requests for all listeners of one broker."""

    def __init__(
        self, cluster: Cluster, *, create: CreateTopics, auto_create: bool, num_partitions: int
    ) -> None:
        """Create the handlers of requests about the cluster, which may create missing topics.

        Args:  create: creates topics (`diskless.apis.topics`).
               auto_create, num_partitions: the settings `auto.create.topics.enable` and
                   `num.partitions`.
        """
        self._cluster = cluster
        self._auto_create = auto_create
        self.creation = AutoCreation(cluster, create, num_partitions=num_partitions)
        self.unknown_racks: Counter[str] = Counter()  # racks in client ids, without a broker

    def handlers(self, listener: str) -> dict[int, Served]:
        """Return the request handlers for the clients of this listener, by api key."""
        return {
            3: make_handler(
                rpc.MetadataRequest,
                lambda request, context: self.metadata(request, context, listener),
                in_line=True,
            ),
            10: make_handler(
                FindCoordinatorRequest,
                lambda request, context: self.find_coordinator(request, context, listener),
            ),
            60: make_handler(
                rpc.DescribeClusterRequest,
                lambda request, context: self.describe_cluster(request, listener, context.access),
            ),
            75: make_handler(
                DescribeTopicPartitionsRequest,
                lambda request, context: self.describe_partitions(request, context, listener),
                in_line=True,
            ),
        }

    async def close(self) -> None:
        """Cancel all creations of topics that are in progress."""
        await self.creation.close()

    # --- topics -------------------------------------------------------------------------------

    async def metadata(
        self, request: rpc.MetadataRequest, context: RequestContext, listener: str
    ) -> rpc.MetadataResponse:
        """Answer a Metadata request, after creating the missing topics that may be created."""
        missing: dict[str, int] = {}
        if request.topics and not wants_all(request, context.version):
            absent = await self._absent(request.topics, context.access)
            if absent:
                may_create = self._auto_create and request.allow_auto_topic_creation
                missing = await self._create_missing(absent, context, may_create=may_create)
        view = self._view(context, listener)
        return await describe(
            request, context.version, self._cluster.image, view, missing, context.access
        )

    async def _absent(
        self, topics: Iterable[rpc.MetadataRequest.MetadataRequestTopic], access: Access | None
    ) -> list[str]:
        """Return the sorted names that no topic has and whose topics the client may describe."""
        image, pace, absent = self._cluster.image, Pace(), set[str]()
        for name in (topic.name for topic in topics):
            await pace.step()
            if name is None or image.topic(name) is not None:
                continue
            if may_describe(name, access, logs=False):
                absent.add(name)
        return sorted(absent)

    async def _create_missing(
        self, absent: list[str], context: RequestContext, *, may_create: bool
    ) -> dict[str, int]:
        """Create the missing topics that the client may create; return the others' error codes."""
        access, denied = context.access, list[str]()
        if may_create and access is not None:
            absent, denied = split(absent, lambda name: is_allowed(CREATES, access, name))
        missing = await self.creation.create_missing(
            absent[:MAX_NAMES], create=may_create, client=context.client
        )
        return missing | dict.fromkeys(denied, ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    async def describe_partitions(
        self, request: DescribeTopicPartitionsRequest, context: RequestContext, listener: str
    ) -> DescribeTopicPartitionsResponse:
        """Answer a DescribeTopicPartitions request with one page of partitions."""
        view = self._view(context, listener)
        return await partitions_described.describe(
            request, self._cluster.image, view, context.access
        )

    def _view(self, context: RequestContext, listener: str) -> ClientView:
        rack = rack_hint(context.client_id)
        alive = [] if rack is None else reachable(self._cluster.image, listener)
        if alive and not is_known(rack, alive):  # without serving brokers no rack is known
            self._note_unknown(rack or "", context)
        return ClientView(self._cluster.cluster_id, listener, rack, self._cluster.broker_id)

    def _note_unknown(self, rack: str, context: RequestContext) -> None:
        """Count a request of a client in a rack without brokers; log each rack's first request."""
        if rack not in self.unknown_racks and len(self.unknown_racks) >= MAX_UNKNOWN_RACKS:
            rack = OTHER_RACKS
        if rack not in self.unknown_racks:
            log.warning(
                "rack=%r reason=unknown client_id=%r peer=%s: no unfenced broker is there",
                rack[:100], (context.client_id or "")[:100], context.peer,
            )  # fmt: skip
        self.unknown_racks[rack] += 1

    # --- brokers ------------------------------------------------------------------------------

    def describe_cluster(
        self,
        request: rpc.DescribeClusterRequest,
        listener: str,
        access: Access | None = None,
    ) -> rpc.DescribeClusterResponse:
        """Answer DescribeCluster with the brokers' addresses at the client's listener."""
        cluster_id = self._cluster.cluster_id
        if request.endpoint_type != BROKERS:
            known = request.endpoint_type == CONTROLLERS
            return rpc.DescribeClusterResponse(
                error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE
                if known
                else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
                error_message="This is a broker's listener: ask for endpoint type 1 (brokers).",
                endpoint_type=BROKERS,
                cluster_id=cluster_id,
                brokers=(),
            )
        image = self._cluster.image
        with_operations = request.include_cluster_authorized_operations
        brokers = tuple(
            _described_brokers(image, listener, with_fenced=request.include_fenced_brokers)
        )
        return rpc.DescribeClusterResponse(
            cluster_id=cluster_id,
            controller_id=controller_of(
                reachable(image, listener),
                self._cluster.broker_id,
                listed=[broker.broker_id for broker in brokers],
            ),
            brokers=brokers,
            cluster_authorized_operations=cluster_operations(access)
            if with_operations
            else NOT_ASKED,
        )

    # --- coordinators -------------------------------------------------------------------------

    async def find_coordinator(
        self, request: FindCoordinatorRequest, context: RequestContext, listener: str
    ) -> FindCoordinatorResponse:
        """Answer FindCoordinator with a node or an error for each requested key."""
        if context.version < FIRST_WITH_KEYS:
            (one,) = await self._find(request.key_type, (request.key,), listener, context.version)
            return FindCoordinatorResponse(
                error_code=one.error_code,
                error_message=one.error_message,
                node_id=one.node_id,
                host=one.host,
                port=one.port,
            )
        keys = tuple(dict.fromkeys(request.coordinator_keys))[:MAX_KEYS]
        found = await self._find(request.key_type, keys, listener, context.version)
        return FindCoordinatorResponse(coordinators=tuple(found))

    async def _find(
        self, key_type: int, keys: tuple[str, ...], listener: str, version: int
    ) -> list[_Coordinator]:
        if key_type == GROUP:
            image = self._cluster.image
            members = [broker.broker_id for broker in unfenced_brokers(image)]
            return [self._coordinator_at(key, group_broker(key, members), listener) for key in keys]
        if key_type == TRANSACTION:
            return self._find_transactional(keys, listener)
        if key_type == BATCH and version >= FIRST_WITH_KEYS:
            return await self._find_batch(keys, listener)
        unknown = (
            ErrorCode.INVALID_REQUEST,
            f"Key type {key_type} is not known at version {version}.",
        )
        return [_not_found(key, unknown) for key in keys]

    def _find_transactional(self, keys: tuple[str, ...], listener: str) -> list[_Coordinator]:
        """Answer each transactional id with the broker that should own it."""
        image = self._cluster.image
        if not has_transactions(image.features):
            refused = (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, NO_TRANSACTIONS)
            return [_not_found(key, refused) for key in keys]
        members = [broker.broker_id for broker in unfenced_brokers(image)]
        return [
            self._coordinator_at(key, transaction_broker(key, members), listener) for key in keys
        ]

    async def _find_batch(self, keys: tuple[str, ...], listener: str) -> list[_Coordinator]:
        """Answer each batch coordinator key with this broker for reads, the leader for writes."""
        found: dict[str, _Coordinator] = {}
        for key in keys:
            named = parse_batch_key(key)
            topic = None if named is None else self._cluster.image.topics.get(named[1])
            if named is None:
                text = "A key is read:topicId:partition or write:topicId:partition."
                found[key] = _not_found(key, (ErrorCode.INVALID_REQUEST, text))
            elif topic is None or named[2] not in topic.partitions:
                text = f"There is no partition {named[2]} of {named[1]}."
                found[key] = _not_found(key, (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text))
            elif named[0] == "read":
                found[key] = self._coordinator_at(key, self._cluster.broker_id, listener)
        writes = tuple(key for key in keys if key not in found)
        if writes:
            request = FindCoordinatorRequest(key_type=BATCH, coordinator_keys=writes)
            try:
                answer = await self._cluster.ask_controller(request, FindCoordinatorResponse)
            except CoordinatorError as error:
                none = (ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message)
                found |= {key: _not_found(key, none) for key in writes}
            else:
                found |= {one.key: one for one in answer.coordinators}
        missing: _Reason = (
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            "The controller named no coordinator.",
        )
        return [found.get(key) or _not_found(key, missing) for key in keys]

    def _coordinator_at(self, key: str, broker_id: int | None, listener: str) -> _Coordinator:
        place = None
        if broker_id is not None:
            place = address(self._cluster.image, broker_id, listener)
        if broker_id is None or place is None:
            return _not_found(
                key, (ErrorCode.COORDINATOR_NOT_AVAILABLE, "No broker can act for it now.")
            )
        return _Coordinator(
            key=key, node_id=broker_id, host=place[0], port=place[1], error_message=None
        )


def _not_found(key: str, why: _Reason) -> _Coordinator:
    return _Coordinator(key=key, node_id=NOBODY, port=-1, error_code=why[0], error_message=why[1])


def _described_brokers(
    image: MetadataImage, listener: str, *, with_fenced: bool
) -> Iterable[rpc.DescribeClusterResponse.DescribeClusterBroker]:
    alive = {broker.broker_id for broker in reachable(image, listener)}
    for broker_id, broker in sorted(image.brokers.items()):
        place = address(image, broker_id, listener)
        if place is not None and (with_fenced or broker_id in alive):
            yield rpc.DescribeClusterResponse.DescribeClusterBroker(
                broker_id=broker_id,
                host=place[0],
                port=place[1],
                rack=broker.rack,
                is_fenced=broker_id not in alive,
            )
