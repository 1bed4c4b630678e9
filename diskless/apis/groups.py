"""Serves consumer group requests: decodes them, passes them to the group coordinator, and answers.

    groups = GroupApis(cluster, GroupSettings.of(values), wall_ms=wall_ms, random=random)
    handlers |= groups.handlers

All listeners of a broker share one instance: members of a group may connect to any of them.

The groups that this broker coordinates follow from the image: the unfenced brokers, and its own
epoch. A broker that is fenced, or not registered, coordinates none, and sends members elsewhere.

The trap: a request is passed on *before* the handler returns, not by a task of its own. So the
requests of one connection reach the group in the order in which they were sent, and a heartbeat,
which is answered from memory, needs no task.

Source: docs/design/groups.md; `coordinator.groups.core` for what is decided.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from random import Random
from typing import Final, TypeVar
from uuid import UUID

from coordinator.controller.guarding import Guarded
from coordinator.controller.image import MetadataImage
from coordinator.controller.placement import unfenced_brokers
from coordinator.features import has_transactions
from coordinator.groups.core import GroupBroker
from coordinator.groups.error_responses import transactional_response
from coordinator.groups.running import RunningGroups
from coordinator.groups.settings import GroupSettings
from diskless.access.gate import Gate
from diskless.apis.offset_proofs import AskLog, Proof, prove_offsets
from diskless.cluster import Cluster
from raft.net.connection import Answer, Reply, ServerConnection
from raft.net.errors import BadHeaderError, Reason
from raft.net.frames import Frame, Payload
from raft.net.handlers import Serve, Served, payload
from raft.net.header import RequestHeader
from records.codec import decode_message
from records.kafka_errors import ErrorCode
from records.rpc import groups as rpc
from records.rpc.base import Request, Response

MAX_REQUEST_BYTES: Final = 2 * 1024 * 1024
"""The longest request that is decoded: at most one MiB of a member's data is stored. A longer one
closes its connection; decoding this much takes a tenth of a second."""

R = TypeVar("R", bound=Request)

REQUESTS: Final[tuple[type[Request], ...]] = (
    rpc.OffsetCommitRequest,
    rpc.OffsetFetchRequest,
    rpc.JoinGroupRequest,
    rpc.HeartbeatRequest,
    rpc.LeaveGroupRequest,
    rpc.SyncGroupRequest,
    rpc.DescribeGroupsRequest,
    rpc.ListGroupsRequest,
    rpc.DeleteGroupsRequest,
    rpc.OffsetDeleteRequest,
)


class ImageTopics:
    """The topics of the image, as `coordinator.groups.events.Topics`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def age_ms(self) -> float | None:
        """Return an upper bound of the cluster image's age in ms, or None if unknown."""
        return self._cluster.image_age_ms()

    def partition_count(self, name: str) -> int | None:
        """Return the topic's number of partitions, or None without such a topic."""
        topic = self._cluster.image.topic(name)
        return None if topic is None else len(topic.partitions)

    def topic_id(self, name: str) -> UUID | None:
        """Return the id of the topic with this name, or None without such a topic."""
        found: UUID | None = self._cluster.image.topic_ids.get(name)
        return found

    def name(self, topic_id: UUID) -> str | None:
        """Return the name of the topic with this id, or None without such a topic."""
        topic = self._cluster.image.topics.get(topic_id)
        return None if topic is None else topic.name


class GroupApis:
    """Serves group requests for one broker. Belongs to the event loop that it was created on."""

    def __init__(
        self,
        cluster: Cluster,
        settings: GroupSettings,
        *,
        wall_ms: Callable[[], int],
        random: Random,
        ask_transaction_log: AskLog | None = None,
        gate: Gate | None = None,
    ) -> None:
        """Create a broker's group coordinator and the handlers of its requests.

        Args:  ask_transaction_log: proves offsets of transactions. None: this broker serves no
               TxnOffsetCommit.
               gate: says what clients may do with groups; None: everything.
        """
        core = GroupBroker(
            cluster.broker_id,
            settings,
            ImageTopics(cluster),
            wall_ms=wall_ms,
            catalog=cluster.groups,
        )
        self.running = RunningGroups(
            core, cluster.ask_groups, new_id=lambda: UUID(int=random.getrandbits(128), version=4)
        )
        self.handlers: Mapping[int, Served] = {
            _key(kind): Served(
                kind.schema().versions.first, kind.schema().versions.last, self._server(kind)
            )
            for kind in REQUESTS
        }
        if ask_transaction_log is not None:
            versions = rpc.TxnOffsetCommitRequest.schema().versions
            self.handlers = {
                **self.handlers,
                _key(rpc.TxnOffsetCommitRequest): Served(
                    versions.first, versions.last, self._transactional_server(ask_transaction_log)
                ),
            }
        self._cluster = cluster
        self._gate = gate
        self._seen: object = None  # the image's brokers that the coordinator has been notified of
        self._is_fenced = False
        cluster.on_image(self._on_image)
        self._on_image(cluster.image)

    def set_fenced(self, is_fenced: bool) -> None:
        """Record whether the controller fences this broker, even before the cluster image does."""
        if is_fenced is not self._is_fenced:
            self._is_fenced, self._seen = is_fenced, None
            self._on_image(self._cluster.image)

    async def close(self) -> None:
        """Stop the group coordinator, and redirect all group members to other brokers."""
        await self.running.close()

    def _on_image(self, image: MetadataImage) -> None:
        if image.brokers is self._seen:
            return
        self._seen = image.brokers
        own = image.brokers.get(self._cluster.broker_id)
        if self._is_fenced or own is None:
            self.running.brokers_changed((), -1)
        else:
            brokers = (broker.broker_id for broker in unfenced_brokers(image))
            self.running.brokers_changed(brokers, own.broker_epoch)

    def _server(self, kind: type[Request]) -> Serve:
        def serve(connection: ServerConnection, header: RequestHeader, body: Frame) -> Answer:
            request, finish = self._guard(connection, header, _decode(kind, header, body))
            if request is None:
                return payload(header, finish(None))
            future = self.running.ask(
                request,
                header.api_version,
                client_id=header.client_id or "",
                client_host=_host(connection),
            )
            if future.done():
                return payload(header, finish(future.result()))
            return _later(connection, header, future, finish)

        return serve

    def _guard(self, connection: ServerConnection, header: RequestHeader, request: R) -> Guarded:
        """Return the part of a request that its client may ask for."""
        guarded = None
        if self._gate is not None:
            guarded = self._gate.reduce(request, self._gate.asked(connection, header.api_version))
        return guarded or Guarded(request, _as_it_is)

    def _transactional_server(self, ask_log: AskLog) -> Serve:
        async def commit(
            connection: ServerConnection,
            header: RequestHeader,
            request: rpc.TxnOffsetCommitRequest,
        ) -> Payload:
            version, image = header.api_version, self._cluster.image
            allowed, finish = self._guard(connection, header, request)
            if allowed is None:
                return payload(header, finish(None))
            assert isinstance(allowed, rpc.TxnOffsetCommitRequest), f"{allowed}"
            request = allowed
            code = self.running.core.refuse_group(request.group_id, may_be_empty=False)
            if not has_transactions(image.features):
                code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED  # clients end at once
            proof = Proof(code, -1)
            if code is ErrorCode.NONE:
                proof = await prove_offsets(request, version, image=image, ask_log=ask_log)
            if proof.error_code is not ErrorCode.NONE:
                refused = transactional_response(request, {}, proof.error_code)
                return payload(header, finish(refused))
            response = await self.running.ask(
                request,
                version,
                client_id=header.client_id or "",
                client_host=_host(connection),
                transaction_number=proof.transaction_number,
                is_connected=lambda: not connection.closed,
            )
            return payload(header, finish(response))

        def serve(connection: ServerConnection, header: RequestHeader, body: Frame) -> Answer:
            return commit(connection, header, _decode(rpc.TxnOffsetCommitRequest, header, body))

        return serve


def _decode(kind: type[R], header: RequestHeader, body: Frame) -> R:
    if len(body) > MAX_REQUEST_BYTES:
        name = kind.schema().name
        raise BadHeaderError(f"{name} of {len(body)} bytes, at most {MAX_REQUEST_BYTES}")
    return decode_message(kind, body, header.api_version, whole=False)


def _host(connection: ServerConnection) -> str:
    return f"/{connection.peer.rpartition(':')[0]}"


def _as_it_is(response: Response) -> Response:
    return response


def _later(
    connection: ServerConnection,
    header: RequestHeader,
    future: asyncio.Future[Response],
    finish: Callable[[Response], Response],
) -> Reply:
    reply = Reply(connection)

    def done(answered: asyncio.Future[Response]) -> None:
        if answered.cancelled():  # the broker is closing
            connection.close(Reason.LOCAL)
        else:
            reply.send(payload(header, finish(answered.result())))

    future.add_done_callback(done)
    return reply


def _key(kind: type[Request]) -> int:
    key = kind.schema().key
    assert key is not None, f"no request: {kind}"
    return key
