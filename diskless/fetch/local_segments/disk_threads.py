"""Threads that wait for the disk of the local segments, and that nobody has to wait for.

A disk that hangs (a network volume, a failing device) holds a thread for as long as it likes. A
process with a thread of `ThreadPoolExecutor` waits for it at its end. It does not wait for these.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class DiskThreads(Executor):
    """Daemon threads that run calls in the order of their submission."""

    def __init__(self, name: str, count: int) -> None:
        """Prepare so many threads, which begin with the first call."""
        self._name = name
        self._count = count
        self._threads: list[threading.Thread] = []
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._began_at: dict[int, float] = {}  # of each running call, by thread

    @property
    def longest_s(self) -> float:
        """Return for how many seconds the longest of the running calls has been running."""
        began_at = list(self._began_at.values())
        return time.monotonic() - min(began_at) if began_at else 0.0

    def submit(self, call: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run `call(*args, **kwargs)` in one of the threads."""
        future: Future[T] = Future()
        self._calls.put((future, partial(call, *args, **kwargs)))
        if len(self._threads) < self._count:
            name = f"{self._name}-{len(self._threads)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """Let the threads end after the submitted calls, without waiting for them."""
        for _ in self._threads:
            self._calls.put(None)

    def _work(self) -> None:
        me = threading.get_ident()
        while (item := self._calls.get()) is not None:
            future, call = item
            if not future.set_running_or_notify_cancel():
                continue
            self._began_at[me] = time.monotonic()
            try:
                result = call()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            finally:
                del self._began_at[me]
