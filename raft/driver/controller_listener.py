"""The controller listener's requests: who answers which, and what is wrong with the others.

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
from raft.driver.inbound_request import Asked
from raft.driver.peers import OUR_VERSIONS
from raft.driver.snapshot_serving import Question, Slot, SnapshotServer
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
from raft.net.routes import Routes
from raft.wire import fetch as wire_fetch
from raft.wire import responses as wire
from raft.wire.responses import BadRequestError, GroupRef
from raft.wire.snapshots import failed_fetch_snapshot, read_fetch_snapshot
from records.codec import decode_message
from records.kafka_errors import ErrorCode
from records.rpc import cluster, fetch, list_offsets, quorum
from records.types import NodeId, Offset

SUPPORTED_FEATURES: Final = {"metadata.version": (7, 27), "kraft.version": (0, 0)}
"""Levels of features that this node can run under."""

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


class Host(Protocol):
    """What the service asks of its node."""

    cluster_id: str
    node_id: NodeId
    voters: VoterSet

    def find(self, ref: GroupRef) -> GroupDriver | None: ...

    def bench_log(self) -> BenchLog | None: ...

    def endpoint(self, node_id: NodeId) -> Endpoint | None: ...

    def controllers(self) -> Mapping[NodeId, Endpoint]: ...

    def features(self) -> tuple[Mapping[str, int], Offset]: ...


class Service:
    """The handler of the controller listener."""

    def __init__(self, host: Host, *, serves_produce: bool) -> None:
        self._host = host
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
        self._routes = Routes()
        self._routes.add(
            {
                key: Served(*versions, serve[key])
                for key, versions in OUR_VERSIONS.items()
                if key != PRODUCE or serves_produce
            },
            large={PRODUCE},
        )

    def serve_also(self, handlers: Mapping[int, Served], *, large: bool) -> None:
        """More requests; `large` ones bound by themselves what they decode."""
        self._routes.add(handlers, large=handlers if large else ())

    def handle(self, connection: ServerConnection, frame: Frame) -> Answer:
        """Answer one request, or promise to.

        Raises:  NetError or RecordError for bytes that are no request: the connection is closed.
        """
        bench = self._host.bench_log()
        if bench is not None:
            reply = bench.produce_known(connection, frame)
            if reply is not None:
                return reply
        return self._routes.handle(connection, frame)

    def closed(self, connection: ServerConnection) -> None:
        """Tell the groups that asked of it; for the listener's `on_close`."""
        groups = connection.context
        if isinstance(groups, set):
            for group in groups:
                group.connection_closed(connection.id)

    # --- the quorum's own ---------------------------------------------------------------------

    def _hand_on(
        self,
        connection: ServerConnection,
        group: GroupDriver,
        asked: Asked,
        request: Request,
    ) -> Reply:
        if connection.context is None:
            connection.context = {group}
        else:
            connection.context.add(group)  # type: ignore[attr-defined]
        group.receive(connection.id, asked, request)
        return asked.reply

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
        return self._hand_on(connection, group, Asked(header, Reply(connection)), request)

    def _fetch(self, connection: ServerConnection, header: RequestHeader, body: Frame) -> Answer:
        version = header.api_version
        message = decode_message(fetch.FetchRequest, body, version)
        if message.session_id > 0:  # sessions are never granted, so nobody can have one
            gone = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            return payload(header, fetch.FetchResponse(error_code=gone, responses=()))
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
                group.heard_reader(request.replica, archived)
        except BadRequestError:
            error = ErrorCode.INVALID_REQUEST
            return payload(header, fetch.FetchResponse(error_code=error, responses=()))
        from_voter = group.quorum.voters.is_voter(request.replica)
        asked = Asked(header, Reply(connection), form, from_voter=from_voter)
        return self._hand_on(connection, group, asked, request)

    def _fetch_snapshot(
        self, connection: ServerConnection, header: RequestHeader, body: Frame
    ) -> Answer:
        """Each partition goes to its group; the question is answered when all have judged."""
        message = decode_message(fetch.FetchSnapshotRequest, body, header.api_version)
        try:
            asked = read_fetch_snapshot(message)
        except BadRequestError:
            return payload(header, failed_fetch_snapshot(ErrorCode.INVALID_REQUEST))
        reply = Reply(connection)
        question = Question(self.snapshots, header, reply, message, asked)
        for index, one in enumerate(asked):
            group = self._host.find(one.ref)
            if group is None:
                question.refuse(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            elif one.request is None:
                question.refuse(index, ErrorCode.INVALID_REQUEST)
            else:
                waiting = Asked(header, reply, slot=Slot(question, index))
                self._hand_on(connection, group, waiting, one.request)
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
        """Linearizable ends (or the start) of groups, each behind its own read barrier."""
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
        asked: list_offsets.ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition,
    ) -> list_offsets.ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse:
        answer = (
            list_offsets.ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse
        )
        index, epoch = asked.partition_index, asked.current_leader_epoch
        group = self._host.find(GroupRef(topic, index))
        if group is None:
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return answer(partition_index=index, error_code=unknown)
        if asked.timestamp not in (LATEST, EARLIEST):
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
        latest = asked.timestamp == LATEST
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
        # Version 3 cannot say that a feature's lowest level is 0; whoever asks with it is not told.
        zero_possible = header.api_version >= 4
        message = response(
            api_keys=self._routes.api_keys(),
            supported_features=tuple(
                response.SupportedFeatureKey(name=name, min_version=low, max_version=high)
                for name, (low, high) in SUPPORTED_FEATURES.items()
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
        """The controllers that have registered, and the other voters; nobody here knows brokers."""
        asked = decode_message(cluster.DescribeClusterRequest, body, header.api_version)
        host, response = self._host, cluster.DescribeClusterResponse
        versioned = header.api_version >= 1
        if asked.endpoint_type != CONTROLLERS:
            known = asked.endpoint_type == 1
            error = (
                ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
            )
            message = response(
                error_code=error,
                error_message="this is a controller listener; ask for endpoint type 2",
                endpoint_type=asked.endpoint_type if versioned else 1,
                cluster_id=host.cluster_id,
                brokers=(),
            )
            return payload(header, message)
        metadata = host.find(GroupRef("__cluster_metadata", 0))
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
