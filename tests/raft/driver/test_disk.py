"""The disk thread runs jobs in order, and a failure reaches every waiting task."""

from __future__ import annotations

import asyncio

import pytest

from raft.driver.disk_thread import DiskThread
from tests.waiting import DEADLINE_S


class FlushError(Exception):
    """A job that fails."""


def fail() -> None:
    raise FlushError


def test_the_disk_thread_of_a_raft_group_runs_jobs_in_order_and_returns_their_results() -> None:
    async def story() -> None:
        failures, done = list[BaseException](), list[int]()
        disk = DiskThread("test", asyncio.get_running_loop(), failures.append)
        for number in range(3):
            disk.submit(lambda number=number: number, done.append)
        assert await disk.run(lambda: 3) == 3
        assert done == [0, 1, 2]
        assert not failures
        await disk.close()

    asyncio.run(story())


def test_a_job_on_a_failed_disk_thread_raises_the_error_of_the_first_failure() -> None:
    """Or a node whose disk fails while it stops would wait for ever."""

    async def story() -> None:
        failures, done = list[BaseException](), list[object]()
        disk = DiskThread("test", asyncio.get_running_loop(), failures.append)
        disk.submit(fail, done.append)
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(FlushError):
                await disk.run(lambda: None)
            with pytest.raises(FlushError):
                await disk.run(lambda: None)  # nor does anything run later
            await disk.close()
        assert [type(error) for error in failures] == [FlushError]
        assert not done

    asyncio.run(story())
