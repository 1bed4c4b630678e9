"""Threads that call the disk of the local segments, and that no shutdown waits for.

A disk that hangs (a network volume, a failing device) holds a thread for as long as it likes. The
interpreter joins the threads of `ThreadPoolExecutor` before it exits; it does not join these.
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
        """Prepare the threads; each of the first `count` calls starts one."""
        self._name = name
        self._count = count
        self._threads: list[threading.Thread] = []
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._began_at: dict[int, float] = {}  # of each running call, by thread
        self._is_shut_down = False

    @property
    def longest_running_s(self) -> float:
        """Return for how many seconds the longest of the running calls has been running."""
        began_at = list(self._began_at.values())
        return time.monotonic() - min(began_at) if began_at else 0.0

    def submit(self, call: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run `call(*args, **kwargs)` in one of the threads.

        Raises:  RuntimeError after `shutdown`, or if no thread can be started.
        """
        if self._is_shut_down:
            raise RuntimeError(f"{self._name}: a call after the shutdown")
        if len(self._threads) < self._count:
            name = f"{self._name}-{len(self._threads)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)
        future: Future[T] = Future()
        self._calls.put((future, partial(call, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """Let the threads end after the submitted calls, without waiting for them."""
        self._is_shut_down = True
        for _ in self._threads:
            self._calls.put(None)

    def _work(self) -> None:
        while self._run_next():
            pass

    def _run_next(self) -> bool:
        """Run the next call; return False if there will be none.

        Its own function: an idle thread keeps nothing of its last call alive.
        """
        item = self._calls.get()
        if item is None:
            return False
        future, call = item
        del item
        if not future.set_running_or_notify_cancel():
            return True
        me = threading.get_ident()
        self._began_at[me] = time.monotonic()
        try:
            result = call()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)
        finally:
            del self._began_at[me], future  # the error's traceback has this frame
        return True
