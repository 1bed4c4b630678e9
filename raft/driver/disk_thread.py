"""A thread that runs a group's disk jobs one after the other, off the event loop.

Every group has its own: a slow disk is then never taken for a dead leader, and one group's flush
never delays another's heartbeats. Work is done in the order submitted; its result comes back as a
call on the loop. An exception is fatal to the node: after a failed flush nothing is known any more
of what the disk holds.

What a hop costs is part of the price of one commit alone: a thread that waits on a `SimpleQueue`
and answers with `call_soon_threadsafe` takes 50 µs there and back, an executor 70, where an
fdatasync takes 150.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class DiskThread:
    """Runs jobs in order; `on_failure(error)` is called on the loop if a job raises."""

    def __init__(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._loop = loop
        self._on_failure = on_failure
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Callable[[Any], None]] | None]
        self._jobs = SimpleQueue()
        self._failed = False  # set by the thread: no further job is run
        self._job_began_at: float | None = None  # set by the thread, read by the loop
        self._failure: BaseException | None = None  # set by the loop
        self._awaited: set[asyncio.Future[Any]] = set()
        self._thread = threading.Thread(target=self._work, name=f"disk-{name}", daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], T], done: Callable[[T], None]) -> None:
        """Run `job()` in the disk thread, then call `done(result)` on the event loop.

        Call from the event loop only.
        """
        self._jobs.put((job, done))

    @property
    def job_s(self) -> float:
        """Return the seconds for which the current job has been running, or 0 without a job."""
        began_at = self._job_began_at
        return 0.0 if began_at is None else time.monotonic() - began_at

    async def run(self, job: Callable[[], T]) -> T:
        """Run `job()` in the disk thread and return its result.

        Raises:  the error of this job, or of an earlier one that kept it from running.
        """
        if self._failure is not None:
            raise self._failure
        future: asyncio.Future[T] = self._loop.create_future()

        def done(result: T) -> None:
            if not future.done():
                future.set_result(result)

        self._awaited.add(future)
        self.submit(job, done)
        try:
            return await future
        finally:
            self._awaited.discard(future)

    async def close(self) -> None:
        """Finish the submitted jobs, then end the disk thread."""
        self._jobs.put(None)
        while self._thread.is_alive():
            await asyncio.sleep(0.001)

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        for future in self._awaited:
            if not future.done():
                future.set_exception(error)
        self._on_failure(error)

    def _work(self) -> None:
        post = self._loop.call_soon_threadsafe
        while (item := self._jobs.get()) is not None:
            if self._failed:
                continue
            job, done = item
            self._job_began_at = time.monotonic()
            try:
                result = job()
            except BaseException as error:
                self._failed = True
                post(self._fail, error)
            else:
                post(done, result)
            finally:
                self._job_began_at = None
