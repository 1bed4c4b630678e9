"""A broker's side of its membership: epochs, fencing, leaving. Source: KIP-631."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from coordinator.controller.client import ControllerClient
from coordinator.controller.registration import (
    RETRY_INTERVAL_S,
    BrokerListener,
    BrokerMembership,
    Registration,
    RegistrationRefusedError,
)
from coordinator.errors import CoordinatorError
from coordinator.leader_client import NobodyListensError
from raft.net import run as run_loop
from records.features import SUPPORTED
from records.kafka_errors import ErrorCode
from records.rpc import brokers as rpc
from records.rpc.base import Request, Response
from records.rpc.descriptions import DescribeBrokersRequest, DescribeBrokersResponse
from tests.coordinator.controller.test_processes import Story
from tests.diskless.virtual_time import run
from tests.ports import free_port
from tests.quorum_processes import NODES, Quorum
from tests.waiting import DEADLINE_S, wait_until, wait_until_async

DUPLICATE, STALE, WRONG_CLUSTER = 101, 77, 104


def membership(cluster_id: str = "c") -> BrokerMembership:
    return BrokerMembership(
        cluster_id=cluster_id,
        broker_id=1001,
        incarnation_id=UUID(int=7),
        directory_id=UUID(int=1 << 70),
        listeners=(BrokerListener(name="PLAINTEXT", host="127.0.0.1", port=9092),),
        features=tuple((name, *levels) for name, levels in SUPPORTED.items()),
        heartbeat_interval_ms=100,
    )


class Script:
    """A controller with scripted answers; by default it accepts everything."""

    def __init__(self) -> None:
        self.registrations: list[rpc.BrokerRegistrationResponse | Exception] = []
        self.heartbeats: list[rpc.BrokerHeartbeatResponse | Exception] = []
        self.seen: list[Request] = []
        self.epoch = 4

    async def call(self, request: Request, _: type[Response]) -> Any:
        self.seen.append(request)
        answer: Any
        if isinstance(request, rpc.BrokerRegistrationRequest):
            self.epoch += 1
            answer = rpc.BrokerRegistrationResponse(broker_epoch=self.epoch)
            answer = self.registrations.pop(0) if self.registrations else answer
        else:
            assert isinstance(request, rpc.BrokerHeartbeatRequest)
            answer = rpc.BrokerHeartbeatResponse(
                is_caught_up=True, is_fenced=False, should_shut_down=request.want_shut_down
            )
            answer = self.heartbeats.pop(0) if self.heartbeats else answer
        if isinstance(answer, Exception):
            raise answer
        return answer

    def count(self, kind: type[Request]) -> int:
        return sum(isinstance(request, kind) for request in self.seen)


class Broker:
    """A registration that records its events."""

    def __init__(self, client: object, member: BrokerMembership | None = None) -> None:
        self.changes: list[tuple[int | None, bool]] = []
        self.lost: list[Exception] = []
        self.registration = Registration(
            cast(ControllerClient, client),
            member or membership(),
            metadata_offset=lambda: 1_000_000,
            on_change=self._changed,
            on_lost=self.lost.append,
        )

    def _changed(self) -> None:
        self.changes.append((self.registration.epoch, self.registration.is_fenced))


def test_a_broker_registers_and_is_unfenced_by_a_heartbeat() -> None:
    async def story() -> None:
        script = Script()
        broker = Broker(script)
        assert await broker.registration.start() == 5
        await asyncio.sleep(1)
        assert broker.changes == [(5, True), (5, False)]
        assert 8 <= script.count(rpc.BrokerHeartbeatRequest) <= 12
        await broker.registration.stop(1)

    run(story)


def test_a_broker_that_reaches_no_controller_for_a_whole_session_acts_as_a_fenced_broker() -> None:
    async def story() -> None:
        script = Script()
        loop = asyncio.get_running_loop()
        broker = Broker(script, dataclasses.replace(membership(), session_timeout_ms=1_000))
        await broker.registration.start()
        await asyncio.sleep(0.5)
        nobody = CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "nobody")
        script.heartbeats = [nobody] * 15
        began = loop.time()
        while not broker.registration.is_fenced:
            await asyncio.sleep(0.01)
        assert 0.9 <= loop.time() - began <= 1.2
        await asyncio.sleep(1)
        assert broker.changes == [(5, True), (5, False), (5, True), (5, False)]
        await broker.registration.stop(1)

    run(story)


def test_broker_registration_retries_a_duplicate_id_and_fails_for_a_wrong_cluster() -> None:
    async def story() -> None:
        script = Script()
        script.registrations = [rpc.BrokerRegistrationResponse(error_code=DUPLICATE)] * 3
        began = asyncio.get_running_loop().time()
        broker = Broker(script)
        await broker.registration.start()
        assert asyncio.get_running_loop().time() - began >= 3 * RETRY_INTERVAL_S
        await broker.registration.stop(1)
        script.registrations = [rpc.BrokerRegistrationResponse(error_code=WRONG_CLUSTER)]
        with pytest.raises(RegistrationRefusedError, match="not of cluster c"):
            await Broker(script).registration.start()

    run(story)


def test_broker_registration_fails_after_its_timeout() -> None:
    async def story() -> None:
        script = Script()
        script.registrations = [rpc.BrokerRegistrationResponse(error_code=DUPLICATE)] * 1_000
        with pytest.raises(RegistrationRefusedError, match="within 60000 ms"):
            await Broker(script).registration.start()

    run(story)


def test_a_broker_whose_heartbeat_gets_stale_broker_epoch_registers_again() -> None:
    async def story() -> None:
        script = Script()
        broker = Broker(script)
        await broker.registration.start()
        await asyncio.sleep(0.3)
        script.heartbeats = [rpc.BrokerHeartbeatResponse(error_code=STALE, should_shut_down=False)]
        await asyncio.sleep(1)
        assert broker.changes == [(5, True), (5, False), (None, True), (6, True), (6, False)]
        await broker.registration.stop(1)

    run(story)


def test_a_broker_keeps_running_while_no_controller_can_be_reached() -> None:
    async def story() -> None:
        script = Script()
        broker = Broker(script)
        await broker.registration.start()
        gone = CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no controller answers")
        script.heartbeats = [gone] * 5
        await asyncio.sleep(1)
        assert broker.registration.epoch == 5
        assert not script.heartbeats
        assert not broker.lost
        await broker.registration.stop(1)

    run(story)


def test_a_permanently_refused_registration_calls_the_on_lost_callback() -> None:
    async def story() -> None:
        script = Script()
        broker = Broker(script)
        await broker.registration.start()
        script.heartbeats = [rpc.BrokerHeartbeatResponse(error_code=STALE, should_shut_down=False)]
        script.registrations = [rpc.BrokerRegistrationResponse(error_code=WRONG_CLUSTER)]
        await asyncio.sleep(1)
        assert len(broker.lost) == 1
        await broker.registration.stop(1)

    run(story)


@pytest.mark.parametrize(
    ("kind", "waited_s"), [(NobodyListensError, 0.1), (CoordinatorError, 60)], ids=["none", "busy"]
)
def test_stopping_a_broker_does_not_wait_for_a_session_if_no_controller_runs(
    kind: type[CoordinatorError], waited_s: float
) -> None:
    """All nodes are stopped at once, and the quorum is gone first. A quorum that only does not
    answer may be electing a leader.
    """

    async def story() -> None:
        script = Script()
        loop = asyncio.get_running_loop()
        broker = Broker(script)
        await broker.registration.start()
        await asyncio.sleep(1)
        script.heartbeats = [kind(ErrorCode.COORDINATOR_NOT_AVAILABLE, "nobody")] * 10_000
        began = loop.time()
        assert not await broker.registration.stop(60)
        assert loop.time() - began == pytest.approx(waited_s, abs=0.2)

    run(story)


def test_a_broker_heartbeat_fails_at_once_if_no_controller_accepts_connections() -> None:
    """Other calls continue: the quorum may be starting."""

    async def story() -> None:
        client = ControllerClient([("127.0.0.1", free_port())], timeout_ms=60_000, alone_ms=100)
        beat = rpc.BrokerHeartbeatRequest(
            broker_id=1,
            broker_epoch=1,
            current_metadata_offset=1,
            want_fence=False,
            want_shut_down=False,
        )
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(NobodyListensError, match="no controller answers"):
                await client.call(beat, rpc.BrokerHeartbeatResponse)
        await client.close()
        patient = ControllerClient([("127.0.0.1", free_port())], timeout_ms=60_000)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await patient.call(beat, rpc.BrokerHeartbeatResponse)
        await patient.close()

    run_loop(story())


def test_stopping_a_broker_waits_until_the_controller_allows_the_shutdown() -> None:
    async def story() -> None:
        script = Script()
        broker = Broker(script)
        await broker.registration.start()
        not_yet = rpc.BrokerHeartbeatResponse(is_fenced=False, should_shut_down=False)
        script.heartbeats = [not_yet] * 3
        assert await broker.registration.stop(60)
        assert not script.heartbeats
        last = script.seen[-1]
        assert isinstance(last, rpc.BrokerHeartbeatRequest)
        assert last.want_shut_down

    run(story)


# --- on a real quorum ---------------------------------------------------------------------------


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    with Quorum(tmp_path) as quorum:
        quorum.start(*NODES)
        yield Story(quorum)


def test_a_broker_keeps_its_broker_epoch_when_the_active_controller_is_killed(story: Story) -> None:
    """The broker knows the address of a single node, which does not lead."""
    story.register()
    active = story.beat()
    follower = next(node for node in NODES if node != active)

    def described() -> DescribeBrokersResponse.Broker | None:
        answer = story.ask_node(follower, DescribeBrokersRequest(), DescribeBrokersResponse)
        return next((broker for broker in answer.brokers if broker.broker_id == 1004), None)

    async def life() -> None:
        client = ControllerClient([("127.0.0.1", story.quorum.ports[follower])])
        member = membership(story.cluster_id)
        broker = Broker(client, _with_id(member, 1004))
        registration = broker.registration
        epoch = await registration.start()
        await wait_until_async(lambda: not registration.is_fenced, "unfenced")
        story.quorum.kill(active)
        beats = len(broker.changes)
        await asyncio.to_thread(story.beat)
        assert (registration.epoch, len(broker.changes)) == (epoch, beats)
        stopping = asyncio.ensure_future(registration.stop(DEADLINE_S))
        while not stopping.done():  # it may go once the others have read that it does
            await asyncio.to_thread(story.beat, 2**40)
        await stopping
        await client.close()

    run_loop(life())

    def has_left() -> bool:
        left = described()
        return left is not None and left.is_fenced

    wait_until(has_left, "the follower has read that the broker left", retry_on=(OSError,))


def _with_id(member: BrokerMembership, broker_id: int) -> BrokerMembership:
    return dataclasses.replace(member, broker_id=broker_id, incarnation_id=UUID(int=broker_id))
