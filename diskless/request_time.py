"""Measures the time that a request takes of the process: on the event loop, and in threads.

    with measured(watch):
        answer = handle(...)         # tasks that it makes by `timed` count, too, whenever they run
    watch.read_ns()

A task of a request runs in steps, between which it waits; only its steps count. Nothing is measured
unless somebody asks: then `timed` and `in_thread` do what they would do without.

Source: KIP-124 (request time), there of threads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")


class Stopwatch:
    """The time that one request has taken, in ns."""

    __slots__ = ("_began_ns", "_total_ns")

    def __init__(self) -> None:
        self._total_ns = 0
        self._began_ns: int | None = None

    def start(self) -> None:
        """Begin a step of the request's work."""
        self._began_ns = time.perf_counter_ns()

    def stop(self) -> None:
        """End a step of the request's work."""
        assert self._began_ns is not None, "a step that ends twice"
        self._total_ns += time.perf_counter_ns() - self._began_ns
        self._began_ns = None

    def add_ns(self, took_ns: int) -> None:
        """Add work that was done elsewhere."""
        self._total_ns += took_ns

    def read_ns(self) -> int:
        """Return the time of all steps, with that of a step which has not ended."""
        if self._began_ns is None:
            return self._total_ns
        return self._total_ns + time.perf_counter_ns() - self._began_ns


_CURRENT: ContextVar[Stopwatch | None] = ContextVar("request_time", default=None)


@contextmanager
def measured(watch: Stopwatch) -> Iterator[None]:
    """Measure what is done in the block, and the tasks that it makes by `timed`."""
    token = _CURRENT.set(watch)
    watch.start()
    try:
        yield
    finally:
        watch.stop()
        _CURRENT.reset(token)


def timed(work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
    """Return a coroutine for a task, whose steps count for the request if that is measured."""
    watch = _CURRENT.get()
    return work if watch is None else _Timed(work, watch)


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function in a thread; its time counts for the request if that is measured."""
    watch = _CURRENT.get()
    if watch is None:
        return await asyncio.to_thread(function, *arguments)
    result, took_ns = await asyncio.to_thread(_call, function, *arguments)
    watch.add_ns(took_ns)
    return result


def _call(function: Callable[..., T], *arguments: Any) -> tuple[T, int]:
    began_ns = time.perf_counter_ns()
    result = function(*arguments)
    return result, time.perf_counter_ns() - began_ns


class _Timed(Coroutine[Any, Any, T]):
    """A coroutine whose steps are measured."""

    __slots__ = ("_watch", "_work")

    def __init__(self, work: Coroutine[Any, Any, T], watch: Stopwatch) -> None:
        self._work = work
        self._watch = watch

    def send(self, value: Any) -> Any:
        self._watch.start()
        try:
            return self._work.send(value)
        finally:
            self._watch.stop()

    def throw(self, *error: Any) -> Any:
        self._watch.start()
        try:
            return self._work.throw(*error)
        finally:
            self._watch.stop()

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return (yield from self._work.__await__())
