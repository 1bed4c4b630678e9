"""The time of a request: steps of its tasks and its threads, and nothing of what it waits for."""

from __future__ import annotations

import asyncio
import time

from diskless.request_time import Stopwatch, in_thread, measured, timed

WORK_S = 0.02


def work() -> int:
    until = time.perf_counter() + WORK_S
    while time.perf_counter() < until:
        pass
    return 7


async def child() -> int:
    await asyncio.sleep(5 * WORK_S)
    return work()


async def request() -> int:
    work()
    await asyncio.sleep(5 * WORK_S)
    found = await asyncio.gather(timed(child()), timed(child()))
    return sum(found) + await in_thread(work)


def test_a_requests_time_is_that_of_its_steps_its_tasks_and_its_threads() -> None:
    async def story() -> None:
        watch = Stopwatch()
        with measured(watch):
            work()
            task = asyncio.get_running_loop().create_task(timed(request()))
        assert WORK_S <= watch.read_ns() / 1e9 < 4 * WORK_S
        assert await task == 21
        assert 5 * WORK_S <= watch.read_ns() / 1e9 < 9 * WORK_S

    asyncio.run(story())


def test_without_a_request_nothing_is_measured() -> None:
    async def story() -> None:
        coroutine = child()
        assert timed(coroutine) is coroutine
        coroutine.close()
        assert await in_thread(work) == 7

    asyncio.run(story())


def test_an_error_and_a_cancellation_reach_the_measured_coroutine() -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("as it is")

    async def story() -> None:
        ended = []

        async def wait() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(True)

        with measured(Stopwatch()):
            failing, waiting = (asyncio.ensure_future(timed(each())) for each in (fail, wait))
        await asyncio.sleep(0)
        waiting.cancel()
        results = await asyncio.gather(failing, waiting, return_exceptions=True)
        assert [type(result) for result in results] == [ValueError, asyncio.CancelledError]
        assert ended == [True]

    asyncio.run(story())


def test_a_step_that_still_runs_counts() -> None:
    watch = Stopwatch()
    watch.start()
    work()
    assert watch.read_ns() / 1e9 >= WORK_S
    watch.stop()
    before = watch.read_ns()
    watch.add_ns(5)
    assert watch.read_ns() == before + 5
