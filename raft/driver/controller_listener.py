"""Dispatches the controller listener's requests, and refuses the invalid ones.

Requests of the quorum go to their group's core and are answered by it. Questions about the node
itself (ApiVersions, DescribeCluster) are answered here. What cannot be decoded, or is of a version
or key not announced, closes its connection with one log line, as Kafka does; a request that decodes
but says nothing possible is answered with Kafka's error.

Source: KIP-35, KIP-584 (ApiVersions); KIP-919 (DescribeCluster of controllers); KIP-595.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, Protocol

from raft.core.messages import Request
from raft.core.voters import Endpoint, VoterSet
from raft.driver.bench_log import BenchLog
from raft.driver.group import GroupDriver
from raft.driver.inbound_request import InboundRequest
from raft.driver.peers import OUR_VERSIONS
from raft.driver.snapshot_serving import PartitionSlot, SnapshotQuery, SnapshotServer
from raft.interfaces import NotLeaderError
from raft.net import (
    Answer,
    Frame,
    Payload,
    Reply,
    RequestHeader,
    ServerConnection,
)
from raft.net.handlers import Serve, Served, payload
from raft.net.routes import Refuse, Routes
from raft.wire import fetch as wire_fetch
from raft.wire import responses as wire
from raft.wire.responses import BadRequestError, GroupRef
from raft.wire.snapshots import failed_fetch_snapshot, read_fetch_snapshot
from records.codec import decode_message
from records.features import SUPPORTED
from records.internal_topics import CLUSTER_METADATA
from records.kafka_errors import ErrorCode
from records.rpc import cluster, fetch, list_offsets, quorum
from records.types import NodeId, Offset

PRODUCE: Final = 0

CONTROLLERS: Final = 2  # DescribeCluster's endpoint type
LATEST: Final = -1  # ListOffsets' timestamps
EARLIEST: Final = -2

_ReaderOf: Final[dict[int, type[wire.RpcRequest]]] = {
    52: quorum.VoteRequest,
    53: quorum.BeginQuorumEpochRequest,
    54: quorum.EndQuorumEpochRequest,
    55: quorum.DescribeQuorumRequest,
}


class ControllerHost(Protocol):
    """The part of a node that its controller listener uses."""

    cluster_id: str
    node_id: NodeId
    voters: VoterSet

    def find(self, ref: GroupRef) -> GroupDriver | None: ...

    def bench_log(self) -> BenchLog | None: ...

    def endpoint(self, node_id: NodeId) -> Endpoint | None: ...

    def controllers(self) -> Mapping[NodeId, Endpoint]: ...

    def features(self) -> tuple[Mapping[str, int], Offset]: ...


class ControllerService:
    """Handles every request of the controller listener."""

    def __init__(
        self, host: ControllerHost, *, serves_produce: bool, refuse: Refuse | None = None
    ) -> None:
        """Create the handlers of the quorum's own requests.

        Args:  refuse: refuses the requests of peers that may not send them.
        """
        self._host = host
        self._is_gated = refuse is not None
        self.snapshots = SnapshotServer()
        serve: dict[int, Serve] = {
            0: self._produce,
            1: self._fetch,
            2: self._list_offsets,
            18: self._api_versions,
            52: self._quorum,
            53: self._quorum,
            54: self._quorum,
            55: self._quorum,
            59: self._fetch_snapshot,
            60: self._describe_cluster,
        }
        self._routes = Routes(refuse)
        self._routes.add(
            {
                key: Served(*versions, serve[key])
                for key, versions in OUR_VERSIONS.items()
                if key != PRODUCE or serves_produce
            },
            large={PRODUCE},
        )

    @property
    def routes(self) -> Routes:
        """Return the table of the listeners' requests."""
        return self._routes

    def serve_also(self, handlers: Mapping[int, Served], *, large: bool) -> None:
        """Add request handlers by api key, without the usual request size limit if `large`."""
        self._routes.add(handlers, large=handlers if large else ())

    def handle(self, connection: ServerConnection, frame: Frame) -> Answer:
        """Answer one request of a connection, immediately or later through a `Reply`.

        Raises:  NetError or RecordError for a malformed request: the connection is closed.
        """
        bench = None if self._is_gated else self._host.bench_log()
        if bench is not None:
            reply = bench.produce_from_template(connection, frame)
            if reply is not None:
                return reply
        return self._routes.handle(connection, frame)

    def closed(self, connection: ServerConnection) -> None:
        """Notify the groups that have pending requests from a closed connection."""
        groups = connection.context
        if isinstance(groups, set):
            for group in groups:
                group.connection_closed(connection.id)

    # --- the quorum's own ---------------------------------------------------------------------

    def _hand_on(
        self,
        connection: ServerConnection,
        group: GroupDriver,
        inbound: InboundRequest,
        request: Request,
    ) -> Reply:
        if connection.context is None:
            connection.context = {group}
        else:
            connection.context.add(group)  # type: ignore[attr-defined]
        group.receive(connection.id, inbound, request)
        return inbound.reply

    def _quorum(self, connection: ServerConnection, header: RequestHeader, body: Frame) -> Answer:
        message: wire.RpcRequest = decode_message(
            _ReaderOf[header.api_key], body, header.api_version
        )
        try:
            ref, request = wire.read_request(message)
        except BadRequestError:
            return payload(header, wire.top_level_error(message, ErrorCode.INVALID_REQUEST))
        group = self._host.find(ref)
        if group is None:
            return payload(header, wire.unknown_group(message, ref))
        return self._hand_on(connection, group, InboundRequest(header, Reply(connection)), request)

    def _fetch(self, connection: ServerConnection, header: RequestHeader, body: Frame) -> Answer:
        version = header.api_version
        message = decode_message(fetch.FetchRequest, body, version)
        if message.session_id > 0:  # sessions are never granted, so no client can have one
            error = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            return payload(header, fetch.FetchResponse(error_code=error, responses=()))
        try:
            ref, form = wire_fetch.fetch_ref(message, version)
            replica = wire_fetch.replica_of(message)
            group = self._host.find(ref)
            if group is None:
                return payload(header, wire_fetch.refuse_fetch(ref, form))
            if replica is None:
                bench = self._host.bench_log()
                if bench is None or bench.group is not group:
                    error = ErrorCode.INVALID_REQUEST
                    return payload(header, wire_fetch.refuse_fetch(ref, form, error))
                return bench.fetch(header, message, form)
            request = wire_fetch.read_fetch(message, version)
            archived = wire_fetch.archived_offset_of(message)
            if archived is not None and request.cluster_id in (None, self._host.cluster_id):
                group.record_archive_fetch(request.replica, archived)
        except BadRequestError:
            error = ErrorCode.INVALID_REQUEST
            return payload(header, fetch.FetchResponse(error_code=error, responses=()))
        from_voter = group.quorum.voters.is_voter(request.replica)
        if from_voter and message.wall_clock_ms >= 0:
            group.voter_wall_clocks.note(request.replica.id, message.wall_clock_ms)
        inbound = InboundRequest(header, Reply(connection), form, from_voter=from_voter)
        return self._hand_on(connection, group, inbound, request)

    def _fetch_snapshot(
        self, connection: ServerConnection, header: RequestHeader, body: Frame
    ) -> Answer:
        """Pass each partition of a FetchSnapshot to its group, and answer after all groups."""
        message = decode_message(fetch.FetchSnapshotRequest, body, header.api_version)
        try:
            requested = read_fetch_snapshot(message)
        except BadRequestError:
            return payload(header, failed_fetch_snapshot(ErrorCode.INVALID_REQUEST))
        reply = Reply(connection)
        query = SnapshotQuery(self.snapshots, header, reply, message, requested)
        for index, chunk in enumerate(requested):
            group = self._host.find(chunk.ref)
            if group is None:
                query.refuse(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            elif chunk.request is None:
                query.refuse(index, ErrorCode.INVALID_REQUEST)
            else:
                inbound = InboundRequest(header, reply, slot=PartitionSlot(query, index))
                self._hand_on(connection, group, inbound, chunk.request)
        return reply

    # --- clients ------------------------------------------------------------------------------

    def _produce(self, connection: ServerConnection, header: RequestHeader, body: Frame) -> Answer:
        bench = self._host.bench_log()
        if bench is None:  # the group has not begun here yet
            return BenchLog.unknown(header, body)
        return bench.produce(connection, header, body)

    async def _list_offsets(
        self,
        connection: ServerConnection,  # noqa: ARG002 (a handler's)
        header: RequestHeader,
        body: Frame,
    ) -> Payload:
        """Answer a ListOffsets request after a linearizable read of each group."""
        message = decode_message(list_offsets.ListOffsetsRequest, body, header.api_version)
        topic_type = list_offsets.ListOffsetsResponse.ListOffsetsTopicResponse
        topics = []
        for topic in message.topics:
            partitions = await asyncio.gather(
                *(self._list_offset(topic.name, partition) for partition in topic.partitions)
            )
            if header.api_version < 4:
                partitions = [
                    topic_type.ListOffsetsPartitionResponse(
                        partition_index=p.partition_index, error_code=p.error_code, offset=p.offset
                    )
                    for p in partitions
                ]
            topics.append(topic_type(name=topic.name, partitions=tuple(partitions)))
        return payload(header, list_offsets.ListOffsetsResponse(topics=tuple(topics)))

    async def _list_offset(
        self,
        topic: str,
        requested: list_offsets.ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition,
    ) -> list_offsets.ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse:
        answer = (
            list_offsets.ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse
        )
        index, epoch = requested.partition_index, requested.current_leader_epoch
        group = self._host.find(GroupRef(topic, index))
        if group is None:
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return answer(partition_index=index, error_code=unknown)
        if requested.timestamp not in (LATEST, EARLIEST):
            return answer(partition_index=index, error_code=ErrorCode.INVALID_REQUEST)
        try:
            high_watermark = await group.barrier()
        except NotLeaderError as error:
            return answer(partition_index=index, error_code=error.error)
        current = group.quorum.epoch
        if 0 <= epoch != current:
            error_code = (
                ErrorCode.FENCED_LEADER_EPOCH if epoch < current else ErrorCode.UNKNOWN_LEADER_EPOCH
            )
            return answer(partition_index=index, error_code=error_code)
        latest = requested.timestamp == LATEST
        offset = high_watermark if latest else group.storage.log.log_start_offset
        return answer(partition_index=index, error_code=0, offset=offset, leader_epoch=current)

    # --- about the node -----------------------------------------------------------------------

    def _api_versions(
        self,
        connection: ServerConnection,  # noqa: ARG002 (a handler's)
        header: RequestHeader,
        body: Frame,
    ) -> Answer:
        decode_message(cluster.ApiVersionsRequest, body, header.api_version)
        response = cluster.ApiVersionsResponse
        finalized, epoch = self._host.features()
        # Version 3 cannot express a lowest level of 0, so such features are left out of its answer.
        zero_possible = header.api_version >= 4
        message = response(
            api_keys=self._routes.api_keys(),
            supported_features=tuple(
                response.SupportedFeatureKey(name=name, min_version=low, max_version=high)
                for name, (low, high) in sorted(SUPPORTED.items())
                if low > 0 or zero_possible
            ),
            finalized_features_epoch=epoch,
            finalized_features=tuple(
                response.FinalizedFeatureKey(
                    name=name, max_version_level=level, min_version_level=level
                )
                for name, level in finalized.items()
            ),
        )
        return payload(header, message)

    def _describe_cluster(
        self,
        connection: ServerConnection,  # noqa: ARG002 (a handler's)
        header: RequestHeader,
        body: Frame,
    ) -> Answer:
        """Answer DescribeCluster with registered controllers and other voters, without brokers."""
        request = decode_message(cluster.DescribeClusterRequest, body, header.api_version)
        host, response = self._host, cluster.DescribeClusterResponse
        versioned = header.api_version >= 1
        if request.endpoint_type != CONTROLLERS:
            known = request.endpoint_type == 1
            error = (
                ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
            )
            message = response(
                error_code=error,
                error_message="this is a controller listener; ask for endpoint type 2",
                endpoint_type=request.endpoint_type if versioned else 1,
                cluster_id=host.cluster_id,
                brokers=(),
            )
            return payload(header, message)
        metadata = host.find(GroupRef(CLUSTER_METADATA, 0))
        leader_id = metadata.leader_id if metadata is not None else None
        node = response.DescribeClusterBroker
        brokers = [
            node(broker_id=node_id, host=endpoint.host, port=endpoint.port)
            for node_id, endpoint in sorted(host.controllers().items())
        ]
        message = response(
            endpoint_type=CONTROLLERS,
            cluster_id=host.cluster_id,
            controller_id=wire.wire_node(leader_id),
            brokers=tuple(brokers),
        )
        return payload(header, message)
