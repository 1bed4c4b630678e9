"""Starting and stopping a broker in one process, and changes of its epoch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest

from diskless.broker import Broker, BrokerSettings, ClientListener, NotStartedError
from diskless.produce.closing import Reason
from diskless.stores import ObjectStorage
from diskless.stores.directory import DirectoryStorage
from diskless.stores.memory import MemoryStore
from esker.settings import SETTINGS
from raft.net import ConnectError, connect
from records.batch_writer import build_value_batch
from records.rpc.base import Request
from records.rpc.brokers import (
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
)
from records.rpc.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from records.rpc.produce import ProduceRequest, ProduceResponse
from tests.diskless.broker_world import ask_at, running_broker
from tests.diskless.cluster_world import ClusterWorld
from tests.waiting import DEADLINE_S, wait_until_async

PRODUCE_VERSION = 9
NOT_LEADER_OR_FOLLOWER = 6
HOST = "127.0.0.1"


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await story()

    asyncio.run(bounded())


def made(world: ClusterWorld, store: ObjectStorage | None = None, **values: Any) -> Broker:
    """Create a broker without starting it; settings have _ for dots."""
    known = {key: setting.default for key, setting in SETTINGS.items()}
    named = {name.replace("_", "."): value for name, value in values.items()}
    listener = ClientListener(
        name="PLAIN", bind_host=HOST, bind_port=0, advertised_host="b1.example", advertised_port=0
    )
    return Broker(
        BrokerSettings(
            incarnation_id=UUID(int=10_000),
            directory_id=UUID(int=20_000),
            listeners=(listener,),
            values=known | named,
        ),
        world.cluster(1),
        store or MemoryStore(world.wall_ms),
        wall_ms=world.wall_ms,
        random=Random(1),
        on_lost=print,
    )


def produce(value: bytes, *, timeout_ms: int = 30_000) -> ProduceRequest:
    batch = build_value_batch([value], base_offset=0, leader_epoch=-1, timestamp=1_700_000_000_000)
    topic = ProduceRequest.TopicProduceData
    partition = topic.PartitionProduceData(index=0, records=bytes(batch))
    return ProduceRequest(
        acks=-1,
        timeout_ms=timeout_ms,
        topic_data=(topic(name="t", partition_data=(partition,)),),
    )


async def send(broker: Broker, value: bytes) -> tuple[int, int]:
    """Produce a record; return error and base offset."""
    port = broker.listeners["PLAIN"].port
    answer = await ask_at(port, produce(value), ProduceResponse, PRODUCE_VERSION)
    found = answer.responses[0].partition_responses[0]
    return found.error_code, found.base_offset


def test_a_broker_listens_before_it_registers_its_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clients connect as soon as it is unfenced."""

    async def story() -> None:
        async with ClusterWorld(brokers=()) as world:
            broker = made(world)
            cluster = world.cluster(1)
            asked: list[Request] = []
            ask_controller = cluster.ask_controller

            async def watched(request: Request, response: Any) -> Any:
                (await connect(HOST, broker.listeners["PLAIN"].port)).close()
                asked.append(request)
                return await ask_controller(request, response)

            monkeypatch.setattr(cluster, "ask_controller", watched)
            assert broker.is_fenced
            await broker.start()
            assert not broker.is_fenced
            first, second = asked[:2]
            assert isinstance(first, BrokerRegistrationRequest)
            assert isinstance(second, BrokerHeartbeatRequest)
            told = first.listeners[0]
            assert (told.host, told.port) == ("b1.example", broker.listeners["PLAIN"].port)
            assert broker.epoch == world.image.brokers[1].broker_epoch
            await broker.stop()

    run(story)


def test_a_broker_does_not_listen_before_it_has_read_the_cluster_log() -> None:
    async def story() -> None:
        async with ClusterWorld(brokers=()) as world:
            world.cluster(1).ages_ms[0] = None  # a replica that was never level
            broker = made(world, initial_broker_registration_timeout_ms=100)
            with pytest.raises(NotStartedError, match=r"no __diskless-metadata-0 within 100 ms"):
                await broker.start()
            assert not broker.listeners
            await broker.stop()

    run(story)


@pytest.mark.parametrize(
    ("log", "name"), [("image", "__cluster_metadata-0"), ("groups", "__consumer_offsets-0")]
)
def test_a_broker_does_not_listen_before_its_replicas_have_caught_up(log: str, name: str) -> None:
    """It would deny topics and groups that it has not read yet."""

    async def story() -> None:
        async with ClusterWorld(brokers=()) as world:
            setattr(world.cluster(1), f"{log}_age", None)  # coordinators are known, and level
            broker = made(world, initial_broker_registration_timeout_ms=100)
            with pytest.raises(NotStartedError, match=f"no {name} within 100 ms"):
                await broker.start()
            assert not broker.listeners
            await broker.stop()

    run(story)


def test_a_broker_fails_to_start_if_no_controller_answers() -> None:
    async def story() -> None:
        async with ClusterWorld(brokers=()) as world:
            world.controller_away = True
            broker = made(world, initial_broker_registration_timeout_ms=100)
            with pytest.raises(NotStartedError, match="could not register within 100 ms"):
                await broker.start()
            await broker.stop()

    run(story)


def test_a_stopping_broker_writes_its_buffered_batches_and_answers_their_producers() -> None:
    async def story() -> None:
        async with ClusterWorld(brokers=()) as world:
            never_ms = 2**31 - 1
            async with running_broker(
                world, diskless_append_commit_interval_ms=never_ms, esker_append_quiet_ms=0
            ) as broker:
                await world.create("t")
                port = broker.listeners["PLAIN"].port
                sending = asyncio.ensure_future(send(broker, b"buffered"))
                await wait_until_async(lambda: broker.services.in_flight.used_bytes > 0)
            assert await sending == (0, 0)
            own = world.image.brokers[1]
            assert own.fenced, "clients were sent elsewhere"
            assert world.leaders[0].state.brokers[1].open_leases == (), "it gave its lease back"
            with pytest.raises(ConnectError):
                await connect(HOST, port)

    run(story)


async def change(world: ClusterWorld, broker: str, **values: int) -> None:
    """Set dynamic settings of a broker, or of all brokers; settings have _ for dots."""
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    changes = tuple(
        resource.AlterableConfig(name=name.replace("_", "."), config_operation=0, value=f"{value}")
        for name, value in values.items()
    )
    named = resource(resource_type=4, resource_name=broker, configs=changes)
    request = IncrementalAlterConfigsRequest(resources=(named,), validate_only=False)
    answer = await world.ask(request, IncrementalAlterConfigsResponse)
    assert not answer.responses[0].error_code, answer


def test_a_running_broker_applies_changed_settings_of_its_produce_buffers() -> None:
    hour = 3_600_000

    async def story() -> None:
        async with (
            ClusterWorld(brokers=()) as world,
            running_broker(
                world, diskless_append_commit_interval_ms=hour, esker_append_quiet_ms=0
            ) as broker,
        ):
            await world.create("t")
            closed = broker.services.writers.closing.counters.closed
            await change(world, "1", diskless_append_commit_interval_ms=hour + 1)
            sending = asyncio.create_task(send(broker, b"one"))
            await wait_until_async(lambda: broker.services.writers.in_flight_bytes > 0)
            await change(world, "", diskless_append_commit_interval_ms=1)
            assert not closed, "the broker's own value comes first"
            await change(world, "1", diskless_append_commit_interval_ms=1)  # of a full buffer, too
            assert await sending == (0, 0)
            assert closed == {Reason.INTERVAL: 1}
            await change(world, "1", diskless_append_commit_interval_ms=hour)
            await change(world, "", diskless_append_buffer_max_bytes=1)
            assert await send(broker, b"two") == (0, 1)
            assert closed == {Reason.INTERVAL: 1, Reason.SIZE: 1}
            await change(world, "1", diskless_append_buffer_max_bytes=10_000)
            await change(world, "1", esker_append_quiet_ms=1)
            assert await send(broker, b"three") == (0, 2)
            assert closed == {Reason.INTERVAL: 1, Reason.SIZE: 1, Reason.QUIET: 1}

    run(story)


def test_a_broker_uses_new_object_writers_after_its_broker_epoch_changes() -> None:
    async def story() -> None:
        async with (
            ClusterWorld(brokers=()) as world,
            running_broker(world, broker_heartbeat_interval_ms=20) as broker,
        ):
            await world.create("t")
            assert await send(broker, b"one") == (0, 0)
            old = broker.epoch
            assert old is not None
            await world.unregister(1)
            # There is none for a moment in between.
            await wait_until_async(lambda: broker.epoch not in (old, None))
            assert broker.services.writers.epoch == broker.epoch
            assert broker.epoch is not None
            assert broker.epoch > old
            assert await send(broker, b"two") == (0, 1)
            await wait_until_async(lambda: not broker.is_fenced)

    run(story)


def test_a_broker_whose_id_was_registered_again_coordinates_no_group() -> None:
    """It was paused for longer than its session, and another process registered meanwhile."""

    async def story() -> None:
        async with ClusterWorld(brokers=()) as world:
            async with running_broker(world, broker_heartbeat_interval_ms=600_000) as broker:
                await world.create("t")
                assert await send(broker, b"one") == (0, 0)
                await world.unregister(1)
                other = await world.register(1, incarnation=7)
                # The image says so, and the broker asks.
                await wait_until_async(lambda: broker.epoch is None)
                assert broker.is_fenced
                assert await send(broker, b"two") == (NOT_LEADER_OR_FOLLOWER, -1)
                assert world.image.brokers[1].broker_epoch == other
                began = asyncio.get_running_loop().time()
            assert asyncio.get_running_loop().time() - began < 5, "there is nothing to leave"

    run(story)


def test_a_broker_with_an_expired_session_shuts_down_without_waiting_for_permission() -> None:
    """The controller has fenced it, so clients have left already."""

    async def story() -> None:
        async with ClusterWorld(brokers=()) as world:
            quick = {"broker_heartbeat_interval_ms": 10, "broker_session_timeout_ms": 50}
            async with running_broker(world, **quick) as broker:
                world.controller_away = True
                await asyncio.sleep(0.2)
                assert not broker.is_fenced, "it waits for an answer, and has not looked yet"
                began = asyncio.get_running_loop().time()
            assert asyncio.get_running_loop().time() - began < 2

    run(story)


def test_a_broker_resumes_writing_after_a_false_report_of_a_newer_broker_epoch() -> None:
    """A coordinator may be wrong about a newer epoch; the controller decides."""

    async def story() -> None:
        async with (
            ClusterWorld(brokers=()) as world,
            running_broker(world, broker_heartbeat_interval_ms=600_000) as broker,
        ):
            await world.create("t")
            epoch = broker.epoch
            assert epoch is not None
            broker.services.writers.end()
            broker._on_epoch_doubted()
            await wait_until_async(lambda: broker.services.writers.epoch == epoch)
            assert await send(broker, b"then") == (0, 0)

    run(story)


def test_a_broker_buffers_records_while_its_store_is_unmounted(tmp_path: Path) -> None:
    """No record is lost while a mount is away, and none is written to the wrong disk."""

    async def story() -> None:
        path, aside = tmp_path / "objects", tmp_path / "unmounted"
        async with ClusterWorld(brokers=()) as world:
            broker = made(world, DirectoryStorage(path), diskless_append_commit_interval_ms=1)
            await broker.start()
            await world.create("t", partitions=1)
            assert await send(broker, b"before") == (0, 0)
            path.rename(aside)
            path.mkdir()
            sent = asyncio.ensure_future(send(broker, b"meanwhile"))
            counters = broker.services.writers.counters
            await wait_until_async(lambda: counters.uploads_repeated > 0)
            assert not sent.done()
            assert not list(path.iterdir())
            path.rmdir()
            aside.rename(path)
            assert await sent == (0, 1)
            await broker.stop()

    run(story)


def test_a_broker_with_an_empty_store_does_not_start_in_a_cluster_with_records(
    tmp_path: Path,
) -> None:
    """Without its mount it would write objects where no other broker finds them."""

    async def story() -> None:
        async with ClusterWorld(brokers=()) as world:
            first = made(world, DirectoryStorage(tmp_path / "objects"))
            await first.start()
            await world.create("t", partitions=1)
            assert await send(first, b"value") == (0, 0)
            await first.stop()
            late = made(world, DirectoryStorage(tmp_path / "unmounted"))
            with pytest.raises(NotStartedError, match=r"esker\.storage.*unmounted"):
                await late.start()
            await late.stop()
            assert not list((tmp_path / "unmounted").iterdir())

    run(story)
