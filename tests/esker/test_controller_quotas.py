"""Clients of a controller's listeners are held to their quotas, and nodes are not."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.controller.access import AccessSettings, AccessTable
from coordinator.controller.image import MetadataImage
from coordinator.controller.security import SecurityEdit
from diskless.quotas.throttling import Throttling
from esker.server.controller_quotas import throttle_clients
from raft.net.connection import Reply
from raft.net.handlers import Served, payload
from raft.net.header import RequestKind, request_header
from raft.net.principal import Principal
from raft.net.routes import Routes
from records.codec import decode_message, encode_message
from records.metadata import ClientQuotaRecord
from records.rpc.brokers import BrokerHeartbeatRequest
from records.rpc.cluster import DescribeClusterRequest, DescribeClusterResponse
from tests.diskless.calling import Caller

ANN, NODE = Principal("User", "ann"), Principal("User", "node-1")
VALUES = {
    "quota.window.num": 11,
    "quota.window.size.seconds": 1,
    "connections.max.idle.ms": 600_000,
}
DESCRIBE = DescribeClusterRequest(include_cluster_authorized_operations=False)


def image_with_quota(percent: float) -> MetadataImage:
    """Return an image in which each user may have this much of a processor."""
    entity = ClientQuotaRecord.EntityData(entity_type="user", entity_name=None)
    edit = SecurityEdit(MetadataImage().security)
    record = ClientQuotaRecord(
        entity=(entity,), key="request_percentage", value=percent, remove=False
    )
    edit.apply(record)
    return MetadataImage(security=edit.freeze())


class World:
    """A controller's routes with one request of clients and one of nodes."""

    def __init__(self, *, authorizes: bool = True, is_complete: bool = True) -> None:
        self.is_complete = is_complete
        image = image_with_quota(1e-9)
        settings = AccessSettings(frozenset({str(NODE)}), allow_everyone=False)
        table = AccessTable(settings, lambda: image, lambda: True)
        controllers: Any = SimpleNamespace(
            access=table if authorizes else None,
            machine=SimpleNamespace(image=image),
            listen=lambda callback: callback(image),
            is_image_complete=lambda: self.is_complete,
        )
        self.routes = Routes()
        self.routes.add({60: Served(0, 2, self._describe), 63: Served(0, 1, self._describe)})
        self.throttling = throttle_clients(controllers, self.routes, VALUES)

    def _describe(self, connection: Any, header: Any, body: Any) -> Any:  # noqa: ARG002
        answer = DescribeClusterResponse(error_message=None, cluster_id="c", brokers=())
        return payload(header, answer)

    async def throttled_ms(self, principal: Principal) -> int:
        """Return the throttle time in the answer of DescribeCluster."""
        caller = Caller(principal=principal)
        frame = request_header(RequestKind.of(60, 1, 0), 7, "c") + encode_message(DESCRIBE, 1)
        answer = self.routes.handle(caller, memoryview(frame))  # type: ignore[arg-type]
        data = await caller.answer(answer)
        assert data is not None
        throttle_ms = decode_message(DescribeClusterResponse, data[5:], 1).throttle_time_ms
        assert caller.held is (throttle_ms > 0)
        return throttle_ms


def run(story: Any) -> None:
    asyncio.run(story())


@pytest.mark.parametrize(
    ("principal", "authorizes", "throttled"),
    [(ANN, True, True), (NODE, True, False), (ANN, False, False)],
)
def test_a_client_is_throttled_where_nodes_can_be_told_from_clients(
    principal: Principal, authorizes: bool, throttled: bool
) -> None:
    async def story() -> None:
        world = World(authorizes=authorizes)
        assert (await world.throttled_ms(principal) > 0) is throttled

    run(story)


def test_requests_of_nodes_do_not_count() -> None:
    async def story() -> None:
        world = World()
        caller = Caller(principal=ANN)
        beat = BrokerHeartbeatRequest(
            broker_id=1,
            broker_epoch=1,
            current_metadata_offset=0,
            want_fence=False,
            want_shut_down=False,
        )
        frame = request_header(RequestKind.of(63, 1, 0), 7, "c") + encode_message(beat, 1)
        answer = world.routes.handle(caller, memoryview(frame))  # type: ignore[arg-type]
        assert not isinstance(answer, Reply)  # it was not measured
        assert not caller.held

    run(story)


def test_the_quotas_of_an_image_that_is_not_complete_wait_until_it_is() -> None:
    async def story() -> None:
        world = World(is_complete=False)
        assert await world.throttled_ms(ANN) == 0
        world.is_complete = True
        assert isinstance(world.throttling, Throttling)
        world.throttling._on_image(image_with_quota(1e-9))
        assert await world.throttled_ms(ANN) > 0
        world.throttling.close()

    run(story)
