"""InitProducerId: unique ids, rising epochs, and refused transactions.

Source: KIP-98, KIP-360, KIP-730; docs/design/batch-coordinator.md#idempotence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest

from diskless.apis import producers
from diskless.apis.producers import LAST_EPOCH, ProducerApis, ProducerIds
from diskless.apis.transaction_calls import TransactionCalls
from diskless.transactions.owner import TransactionOwner
from records.rpc.base import Request
from records.rpc.brokers import AllocateProducerIdsRequest
from records.rpc.partitions import InitProducerIdRequest, InitProducerIdResponse
from tests.diskless.calling import call
from tests.diskless.cluster_world import ClusterWorld, WorldCluster
from tests.diskless.virtual_time import run

BLOCK = 1_000  # of the controller


class Asking:
    """A broker's cluster that counts requests for blocks."""

    def __init__(self, cluster: WorldCluster) -> None:
        self._cluster = cluster
        self.blocks = 0
        self.delay_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    async def ask_controller(self, request: Request, response: Any) -> Any:
        assert isinstance(request, AllocateProducerIdsRequest)
        self.blocks += 1
        await asyncio.sleep(self.delay_s)
        return await self._cluster.ask_controller(request, response)


class Scene(NamedTuple):
    """A broker's InitProducerId handler in a cluster."""

    apis: ProducerApis
    asking: Asking
    world: ClusterWorld


def producer_apis(cluster: Any) -> ProducerApis:
    """Build the handler of InitProducerId of one broker."""
    ids = ProducerIds(cluster)
    owner = TransactionOwner(cluster)
    calls = TransactionCalls(cluster, owner, ids, max_timeout_ms=900_000)
    return ProducerApis(ids, calls.init)


def producer_story(story: Callable[[Scene], Awaitable[None]], **more: Any) -> None:
    async def main() -> None:
        async with ClusterWorld(**more) as world:
            asking = Asking(world.cluster(1))
            apis = producer_apis(asking)
            await story(Scene(apis, asking, world))
            await apis.close()

    run(main)


async def ask(
    apis: ProducerApis,
    version: int = 5,
    *,
    transactional_id: str | None = None,
    producer: tuple[int, int] = (-1, -1),
) -> tuple[int, int, int]:
    """Send InitProducerId; return error code, id and epoch."""
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=60_000,
        producer_id=producer[0],
        producer_epoch=producer[1],
    )
    answer = await call(apis.handlers, request, InitProducerIdResponse, version)
    return answer.error_code, answer.producer_id, answer.producer_epoch


@pytest.mark.parametrize("version", range(6))
def test_init_producer_id_returns_a_new_producer_id_with_the_first_epoch(version: int) -> None:
    async def story(scene: Scene) -> None:
        assert await ask(scene.apis, version) == (0, 0, 0)
        assert await ask(scene.apis, version) == (0, 1, 0)
        assert scene.world.image.next_producer_id == BLOCK

    producer_story(story)


def test_producers_at_different_brokers_get_different_producer_ids() -> None:
    async def story(scene: Scene) -> None:
        other = producer_apis(scene.world.cluster(2))
        answers = await asyncio.gather(
            *(ask(one) for _ in range(2 * BLOCK + 50) for one in (scene.apis, other))
        )
        assert {code for code, _, _ in answers} == {0}
        assert len({producer_id for _, producer_id, _ in answers}) == len(answers)
        assert await other.close() is None

    producer_story(story, brokers=(1, 2))


def test_a_broker_fetches_the_next_block_of_producer_ids_before_the_current_block_is_used_up() -> (
    None
):
    """A producer waits for the controller only when a broker has just started."""

    async def story(scene: Scene) -> None:
        scene.asking.delay_s = 2.0
        loop = asyncio.get_running_loop()
        await ask(scene.apis)
        begun = loop.time()
        for number in range(1, 3 * BLOCK):
            assert await ask(scene.apis) == (0, number, 0)
            await asyncio.sleep(0.05)
        waited_s = loop.time() - begun - 0.05 * (3 * BLOCK - 1)
        assert waited_s == pytest.approx(0, abs=1e-6)
        assert scene.asking.blocks == 4

    producer_story(story)


def test_init_producer_id_waits_while_the_broker_has_no_unused_producer_ids() -> None:
    async def story(scene: Scene) -> None:
        scene.asking.delay_s = 0.5
        answers = await asyncio.gather(*(ask(scene.apis) for _ in range(3 * BLOCK)))
        assert sorted(producer_id for _, producer_id, _ in answers) == list(range(3 * BLOCK))
        assert scene.asking.blocks == 4

    producer_story(story)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_producer_that_reports_its_id_and_epoch_gets_the_next_epoch(version: int) -> None:
    """KIP-360; also if it asks twice, because the first answer was lost."""

    async def story(scene: Scene) -> None:
        assert await ask(scene.apis, version, producer=(7, 3)) == (0, 7, 4)
        assert await ask(scene.apis, version, producer=(7, 3)) == (0, 7, 4)
        assert scene.asking.blocks == 0

    producer_story(story)


def test_a_producer_whose_epoch_is_the_largest_gets_another_producer_id() -> None:
    async def story(scene: Scene) -> None:
        assert await ask(scene.apis, producer=(7, LAST_EPOCH - 1)) == (0, 7, LAST_EPOCH)
        assert await ask(scene.apis, producer=(7, LAST_EPOCH)) == (0, 0, 0)
        assert await ask(scene.apis, producer=(7, LAST_EPOCH + 1)) == (0, 1, 0)

    producer_story(story)


@pytest.mark.parametrize("producer", [(7, -1), (-1, 7), (-2, -2), (-2, 0), (5, -7)])
def test_init_producer_id_refuses_a_producer_id_without_an_epoch(producer: tuple[int, int]) -> None:
    async def story(scene: Scene) -> None:
        assert await ask(scene.apis, producer=producer) == (42, -1, -1)

    producer_story(story)


@pytest.mark.parametrize("version", range(6))
def test_a_producer_with_a_transactional_id_gets_a_permanent_error_at_once(version: int) -> None:
    """53 is fatal to the Java client and librdkafka; Kafka refuses an empty id, too."""

    async def story(scene: Scene) -> None:
        scene.world.controller_away = True  # and nobody has to be asked for that
        begun = asyncio.get_running_loop().time()
        assert await ask(scene.apis, version, transactional_id="tx") == (53, -1, -1)
        assert await ask(scene.apis, version, transactional_id="") == (42, -1, -1)
        assert asyncio.get_running_loop().time() == begun

    producer_story(story)


def test_api_versions_does_not_announce_transactional_requests() -> None:
    """Version 6 is of two-phase commit (KIP-939)."""

    async def story(scene: Scene) -> None:
        served = scene.apis.handlers[22]
        assert (served.lowest, served.highest) == (0, 5)

    producer_story(story)


def test_init_producer_id_without_a_controller_returns_a_retriable_error() -> None:
    """COORDINATOR_LOAD_IN_PROGRESS, after a wait shorter than clients' request timeouts."""

    async def story(scene: Scene) -> None:
        scene.world.controller_away = True
        begun = asyncio.get_running_loop().time()
        answers = await asyncio.gather(*(ask(scene.apis) for _ in range(100)))
        assert set(answers) == {(14, -1, -1)}
        assert asyncio.get_running_loop().time() - begun == pytest.approx(producers.WAIT_S)
        assert scene.asking.blocks == 1
        scene.world.controller_away = False
        await asyncio.sleep(20)
        assert await ask(scene.apis) == (0, 0, 0)

    producer_story(story)


def test_a_broker_without_a_registration_allocates_no_producer_ids() -> None:
    """Its epoch is stale: the controller refuses a block, and the broker does not retry."""

    async def story(scene: Scene) -> None:
        scene.world.cluster(1).pause()
        await scene.world.register(1, listeners={"PLAIN": ("moved", 9092)})
        assert await ask(scene.apis) == (14, -1, -1)
        assert scene.asking.blocks == 1
        scene.world.cluster(1).go_on()
        assert await ask(scene.apis) == (0, 0, 0)

    producer_story(story)


def test_a_stopped_broker_leaves_no_pending_request_for_producer_ids() -> None:
    async def story(scene: Scene) -> None:
        scene.asking.delay_s = 100.0
        waiting = asyncio.ensure_future(ask(scene.apis))
        await asyncio.sleep(1)
        await scene.apis.close()
        assert await waiting == (14, -1, -1)

    producer_story(story)
