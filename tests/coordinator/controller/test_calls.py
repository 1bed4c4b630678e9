"""The controller's calls, against the in-memory reference batch coordinator."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

from coordinator.batch.cluster_view import StaticView
from coordinator.batch.memory import InMemoryCoordinator
from coordinator.batch.settings import CoordinatorSettings
from coordinator.controller.coordinator_calls import ClientCalls
from coordinator.errors import CoordinatorError
from records.kafka_errors import ErrorCode
from records.object_keys import ObjectKeys
from records.rpc.batch_coordinator import DeleteDisklessTopicsRequest, InitDisklessTopicsRequest
from records.rpc.objects import DescribeDisklessTopicsRequest
from records.types import Epoch
from tests.doubles.intercepted_call import intercept

T1, T2 = UUID(int=1 << 80), UUID(int=2 << 80)


def coordinator() -> InMemoryCoordinator:
    keys = ObjectKeys(prefix="", cluster_id="c", coordinator_partition=0)
    return InMemoryCoordinator(CoordinatorSettings(keys=keys), StaticView(), lambda: 1_000)


def init(
    topic_id: UUID, count: int, epoch: int, restored: tuple[int, ...] = ()
) -> InitDisklessTopicsRequest:
    topic = InitDisklessTopicsRequest.Topic
    return InitDisklessTopicsRequest(
        controller_epoch=epoch,
        topics=(topic(topic_id=topic_id, topic_name="t", num_partitions=count, restored=restored),),
    )


def delete(topic_id: UUID, epoch: int) -> DeleteDisklessTopicsRequest:
    return DeleteDisklessTopicsRequest(controller_epoch=epoch, topic_ids=(topic_id,))


class AwaitedCalls:
    """Makes calls one after another and awaits each."""

    def __init__(self, client: Any) -> None:
        self.calls = ClientCalls(lambda _: client)

    async def ask(self, method: str, *arguments: Any) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        getattr(self.calls, method)(0, *arguments, answer.set_result)
        return await answer


def codes(answer: Any) -> list[int]:
    return [result.error_code for result in answer.responses]


def test_a_coordinator_answers_repeated_late_and_stale_controller_calls_as_documented() -> None:
    async def story() -> None:
        awaited = AwaitedCalls(coordinator())
        assert codes(await awaited.ask("init", init(T1, 2, 5))) == [0]
        assert codes(await awaited.ask("init", init(T1, 2, 5))) == [0], "repeated"
        assert await awaited.ask("hosted") == {T1: frozenset({0, 1})}
        assert codes(await awaited.ask("init", init(T1, 4, 5))) == [0], "grown"
        assert codes(await awaited.ask("init", init(T1, 1, 5))) == [0], "late: fewer than there are"
        assert await awaited.ask("hosted") == {T1: frozenset(range(4))}
        stale = [ErrorCode.STALE_CONTROLLER_EPOCH]
        assert codes(await awaited.ask("init", init(T2, 1, 4))) == stale
        assert codes(await awaited.ask("delete", delete(T1, 4))) == stale
        assert codes(await awaited.ask("delete", delete(T1, 6))) == [0]
        assert codes(await awaited.ask("init", init(T1, 2, 6))) == [ErrorCode.UNKNOWN_TOPIC_ID]
        assert await awaited.ask("hosted") == {}
        await awaited.calls.close()

    asyncio.run(story())


def test_a_coordinators_partition_list_includes_two_topics_of_the_same_name() -> None:
    """A topic was deleted and recreated, and the coordinator was not informed of the deletion."""

    async def story() -> None:
        awaited = AwaitedCalls(coordinator())
        await awaited.ask("init", init(T1, 1, 1))
        await awaited.ask("init", init(T2, 2, 2))
        assert await awaited.ask("hosted") == {T1: frozenset({0}), T2: frozenset({0, 1})}
        await awaited.calls.close()

    asyncio.run(story())


def test_a_coordinators_partition_list_waits_for_the_read_barrier() -> None:
    """An old replica would still list the partitions that were released."""
    real = coordinator()
    barriers: list[bool] = []

    async def note(request: Any) -> Any:
        barriers.append(request.behind_barrier)
        return await call(request)

    async def story() -> None:
        awaited = AwaitedCalls(real)
        assert await awaited.ask("hosted") == {}
        await awaited.calls.close()

    call = intercept(real, DescribeDisklessTopicsRequest, note)
    asyncio.run(story())
    assert barriers == [True]


def test_the_log_starts_that_a_coordinator_returns_omit_unknown_partitions() -> None:
    async def story() -> None:
        awaited = AwaitedCalls(coordinator())
        await awaited.ask("init", init(T1, 2, 1))
        found = await awaited.ask("log_starts", [(T1, 0), (T1, 9), (T2, 0)])
        assert found == {(T1, 0): 0}
        await awaited.calls.close()

    asyncio.run(story())


def test_a_later_controller_restores_released_partitions_that_were_not_moved() -> None:
    async def story() -> None:
        awaited = AwaitedCalls(coordinator())
        await awaited.ask("init", init(T1, 2, 5))
        assert await awaited.ask("release", Epoch(5), T1, frozenset({1, 7})) == {1}
        assert await awaited.ask("release", Epoch(5), T1, frozenset({1, 7})) == {1}, "repeated"
        assert await awaited.ask("release", Epoch(5), T2, frozenset({0})) == frozenset()
        assert codes(await awaited.ask("init", init(T1, 2, 5, restored=(1,)))) == [0], "late"
        assert await awaited.ask("hosted") == {T1: frozenset({0})}
        late = await awaited.ask("release", Epoch(4), T1, frozenset({0}))
        assert isinstance(late, CoordinatorError)
        assert late.code == ErrorCode.STALE_CONTROLLER_EPOCH
        assert codes(await awaited.ask("init", init(T1, 2, 6))) == [0], "not named"
        assert await awaited.ask("hosted") == {T1: frozenset({0})}
        assert codes(await awaited.ask("init", init(T1, 2, 6, restored=(1,)))) == [0]
        assert await awaited.ask("hosted") == {T1: frozenset({0, 1})}
        await awaited.calls.close()

    asyncio.run(story())


def test_the_controller_treats_an_invalid_coordinator_response_as_no_response() -> None:
    class Strange:
        async def call(self, request: Any) -> Any:  # noqa: ARG002
            raise ValueError("no such code")

        async def close(self) -> None: ...

    async def story() -> None:
        awaited = AwaitedCalls(Strange())
        answer = await awaited.ask("init", init(T1, 1, 1))
        assert isinstance(answer, CoordinatorError)
        await awaited.calls.close()

    asyncio.run(story())
