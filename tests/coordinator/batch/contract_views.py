"""The contract about epochs that only the controller gives: its own, and those of brokers.

The coordinator's copy of the cluster log may be old. An epoch that is newer than the copy is
answered "ask again" and leaves nothing behind: the copy may be old, or the epoch made up.

Source: docs/design/hostile-input.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from coordinator.batch.client import CoordinatorClient
from coordinator.errors import CoordinatorError
from coordinator.leader_client import Patience
from records.kafka_errors import ErrorCode
from tests.coordinator.batch.actors import Broker, create, delete, release
from tests.coordinator.batch.contract_base import Told
from tests.coordinator.batch.subjects import World

HUGE = 2**31 - 1


@contextmanager
def impatient(world: World) -> Iterator[None]:
    """Have a client repeat what is retriable for some milliseconds only."""
    client: Any = world.coordinator
    if not isinstance(client, CoordinatorClient):
        yield
        return
    with patch.object(client, "_patience", Patience(timeout_s=0.02, retry_s=0.005)):
        yield


async def ask_again(world: World, call: Awaitable[object]) -> None:
    """Assert that a call is answered retriable and writes nothing."""
    before = await world.checkpoint()
    answer: object = None
    with impatient(world):
        try:
            answer = await call
        except CoordinatorError as error:
            answer = error.code
    assert answer == ErrorCode.COORDINATOR_NOT_AVAILABLE, answer
    assert await world.checkpoint() == before


class ViewStories(Told):
    """Epochs of controllers and brokers."""

    def test_a_coordinator_call_with_an_uncommitted_controller_epoch_gets_a_retriable_error(
        self,
    ) -> None:
        async def story(world: World) -> None:
            world.view.committed_controller_epoch = 5
            await ask_again(world, create(world, epoch=HUGE))
            await ask_again(world, delete(world, epoch=HUGE))
            await ask_again(world, release(world, 0, epoch=6))
            assert await create(world, epoch=5) == 0
            world.view.committed_controller_epoch = 6
            assert await create(world, partitions=3, epoch=6) == 0
            assert await delete(world, epoch=5) == ErrorCode.STALE_CONTROLLER_EPOCH

        self.tell(story)

    def test_a_coordinator_grants_a_lease_only_to_the_registered_broker_epoch(self) -> None:
        async def story(world: World) -> None:
            world.view.epochs = {1: 7}
            for broker_id, epoch in ((2, 5), (1, 8), (1, 2**63 - 1)):
                await ask_again(world, Broker(world, broker_id, epoch).acquire())
            answer = await Broker(world, 1, 6).acquire()
            assert answer.error_code == ErrorCode.STALE_BROKER_EPOCH
            assert not (await Broker(world, 1, 7).acquire()).error_code
            world.view.epochs[1] = 9
            assert not (await Broker(world, 1, 9).acquire()).error_code

        self.tell(story)

    def test_a_coordinator_with_an_old_cluster_image_grants_leases_to_a_broker_epoch_in_its_own_log(
        self,
    ) -> None:
        async def story(world: World) -> None:
            world.view.epochs = {1: 7}
            assert not (await Broker(world, 1, 7).acquire()).error_code
            world.view.epochs = {1: -1}  # a new leader, whose copy is older
            assert not (await Broker(world, 1, 7).acquire()).error_code
            answer = await Broker(world, 1, 3).acquire()
            assert answer.error_code == ErrorCode.STALE_BROKER_EPOCH
            await ask_again(world, Broker(world, 1, 8).acquire())

        self.tell(story)

    def test_the_coordinator_refuses_a_commit_of_an_object_id_that_was_never_leased(self) -> None:
        async def story(world: World) -> None:
            world.view.epochs = {1: 7}
            await create(world)
            stranger = Broker(world, 2, 5)
            await ask_again(world, stranger.acquire())
            before = await world.checkpoint()
            answer = await stranger.commit(object_id=0, lease_id=0)
            assert answer.error_code == ErrorCode.INVALID_REQUEST
            assert await world.checkpoint() == before

        self.tell(story)
