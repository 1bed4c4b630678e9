"""Decides when open buffers become objects before the commit interval is over.

A producer has a few requests under way and then waits for their answers. If its batches stayed in
the buffer for the whole interval, it could send nothing for most of that time. So buffers are
closed as soon as the broker's producers are *quiet*: no batch was appended, no part of a large
request has arrived and none is being validated for `esker.append.quiet.ms`. They are also closed at
once when the memory for requests is used up, because no producer can send then.

Every object costs a PUT, and each partition in it a row in the coordinator's state. Two budgets
bound what early closings add. Small objects take a token each, and every object takes a token for
each of its partitions. Without tokens a buffer stays open until there are some, or until the
interval is over. Objects that are closed by their size or by the interval take tokens too, but are
never refused.

The trap: the quiet time must be longer than the gap between two requests of one producer. Otherwise
a burst of requests becomes several objects, and stays torn, because its answers arrive torn.

Waiting is skipped where it cannot help: while no object is under way, and each request that was
answered since the last closing has been followed by another one from the same connection. A
producer whose number of requests in flight is limited can then send no more. If the number still
grows, the first burst ended with a whole quiet time, and its answers let the next one be as large.

The buffers of all coordinators close together: a request with batches for several is answered when
all of them are committed.

Source: docs/design/broker.md#when-a-buffer-is-closed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol

from coordinator.controller.config_defs import PROCESS_CONFIGS
from diskless.histograms import Histogram
from diskless.stores.opening import DIRECTORY

LARGE_BYTES: Final = 768 * 1024
"""An object of this size costs no token: its PUT is paid for by what it carries."""

SHORTEST_WAIT_S: Final = 0.001
"""A token that is missing by a rounding error is not there at `now + wait`: that may be now."""

MAX_AWAITED: Final = 10_000
"""Connections that further requests are expected of; refusals are answered without a closing."""

S3_OBJECTS: Final = 8
DIRECTORY_OBJECTS: Final = 64

SIZE_BOUNDS: Final = tuple(float(2**power) for power in range(10, 27, 2))
"""1 KiB to 64 MiB."""


class Reason(StrEnum):
    """The reasons for which a buffer is closed."""

    QUIET = "quiet"
    MEMORY = "memory"
    SIZE = "size"
    INTERVAL = "interval"
    STOP = "stop"


class OpenBuffer(Protocol):
    """The part of an `object_writer.ObjectWriter` that is closed early."""

    @property
    def has_batches(self) -> bool:
        """Return whether the open buffer holds any batch."""

    @property
    def open_bytes(self) -> int:
        """Return the bytes of the batches in the open buffer."""

    @property
    def open_runs(self) -> int:
        """Return the number of partitions with batches in the open buffer."""

    @property
    def can_upload(self) -> bool:
        """Return whether an upload of the buffer could begin at once."""

    @property
    def is_writing(self) -> bool:
        """Return whether an object of closed batches is being uploaded or committed."""

    def close_buffer(self, reason: Reason) -> None:
        """Close the buffer, so that its batches become the next object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosingSettings:
    """The conditions under which buffers are closed early."""

    quiet_ms: int = int(PROCESS_CONFIGS["esker.append.quiet.ms"].default)  # 0: never
    objects_per_second: int = DIRECTORY_OBJECTS  # esker.append.objects.per.second, of small objects
    runs_per_second: int = int(PROCESS_CONFIGS["esker.append.runs.per.second"].default)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> ClosingSettings:
        """Build the settings from a mapping of setting names to parsed values.

        The default number of objects depends on the store: a directory's cost inodes, a bucket's
        money.
        """
        objects = values["esker.append.objects.per.second"]
        if objects is None:
            in_directory = values["diskless.storage.class.name"] == DIRECTORY
            objects = DIRECTORY_OBJECTS if in_directory else S3_OBJECTS
        return cls(
            quiet_ms=values["esker.append.quiet.ms"],
            objects_per_second=objects,
            runs_per_second=values["esker.append.runs.per.second"],
        )


@dataclass(slots=True)
class ClosingCounters:
    """Counts of closed buffers by reason, and their sizes, for metrics."""

    closed: Counter[Reason] = field(default_factory=Counter)
    object_bytes: Histogram = field(default_factory=lambda: Histogram(SIZE_BOUNDS))


class TokenBucket:
    """Tokens that come at a constant rate; at most those of one second are kept.

    >>> bucket = TokenBucket(10, now_s=0.0)
    >>> bucket.take(9, now_s=0.0)
    >>> bucket.wait_s(1, now_s=0.0), bucket.wait_s(6, now_s=0.0)
    (0.0, 0.5)
    >>> bucket.wait_s(99, now_s=1.0)  # a full bucket is enough for any number
    0.0
    """

    def __init__(self, per_second: int, *, now_s: float) -> None:
        self._per_second = per_second
        self._level = float(per_second)
        self._filled_at = now_s

    def wait_s(self, count: int, *, now_s: float) -> float | None:
        """Return the seconds until the bucket has `count` tokens or is full, or None for never."""
        if not self._per_second:
            return None
        self._fill(now_s)
        missing = min(count, self._per_second) - self._level
        return max(0.0, missing / self._per_second)

    def take(self, count: int, *, now_s: float) -> None:
        """Take `count` tokens from the token bucket, or all of its tokens if fewer are left."""
        self._fill(now_s)
        self._level = max(0.0, self._level - count)

    def _fill(self, now_s: float) -> None:
        level = self._level + (now_s - self._filled_at) * self._per_second
        self._level = min(float(self._per_second), level)
        self._filled_at = now_s


class AwaitedRequests:
    """Counts, by connection, requests that were answered and not followed by another one.

    >>> awaited = AwaitedRequests()
    >>> awaited.note_answer(7), awaited.note_answer(7), awaited.note_request(7)
    (None, None, None)
    >>> awaited.have_come
    False
    >>> awaited.note_request(7)
    >>> awaited.have_come
    True
    """

    def __init__(self) -> None:
        self._missing: Counter[int] = Counter()
        self._any_answered = False

    def note_answer(self, connection_id: int) -> None:
        """Expect another request of a connection, because one of its requests was answered."""
        if connection_id in self._missing or len(self._missing) < MAX_AWAITED:
            self._missing[connection_id] += 1
            self._any_answered = True

    def note_request(self, connection_id: int) -> None:
        """Expect one request fewer of a connection that has just sent a request."""
        missing = self._missing.get(connection_id, 0)
        if missing > 1:
            self._missing[connection_id] = missing - 1
        elif missing:
            del self._missing[connection_id]

    def clear(self) -> None:
        """Forget which connections are expected to send another Produce request."""
        self._missing.clear()
        self._any_answered = False

    @property
    def have_come(self) -> bool:
        """Return whether requests were answered and each expected request has arrived."""
        return self._any_answered and not self._missing


class BufferClosing:
    """Closes the open buffers of one broker's writers early. Belongs to the event loop."""

    def __init__(
        self,
        settings: ClosingSettings,
        *,
        buffers: Callable[[], Collection[OpenBuffer]],
        received_at: Callable[[], float],
    ) -> None:
        """Prepare to close the open buffers of all writers early when producers are quiet.

        Args:    buffers: the writers of the current broker epoch.
                 received_at: when a part of a large request last arrived, on the loop's clock.
        """
        self.counters = ClosingCounters()
        self.awaited = AwaitedRequests()
        self.validating = 0  # requests whose batches are being validated
        self._buffers = buffers
        self._received_at = received_at
        self._loop = asyncio.get_running_loop()
        self._appended_at = 0.0
        self._check: asyncio.TimerHandle | None = None
        self._check_at_s = 0.0
        self._stopped = False
        self.change(settings)

    def change(self, settings: ClosingSettings) -> None:
        """Change the settings for closing buffers, and refill the budgets of all rate limits."""
        self._quiet_s = 0.0 if self._stopped else settings.quiet_ms / 1_000
        now_s = self._loop.time()
        self._objects = TokenBucket(settings.objects_per_second, now_s=now_s)
        self._runs = TokenBucket(settings.runs_per_second, now_s=now_s)

    def note_append(self) -> None:
        """Restart the time without appends after which the open buffer is closed."""
        self._appended_at = self._loop.time()
        if not self._quiet_s:
            return
        if self._no_more_can_come():
            self._check_by(self._appended_at)
        elif self._check is None:
            self._check_by(self._appended_at + self._quiet_s)

    def note_upload_end(self) -> None:
        """Check again whether buffers may close, because an upload has ended."""
        if self._check is None and self._quiet_s:
            self._check_by(self._loop.time())

    def note_closed(self, reason: Reason, size_bytes: int, runs: int) -> None:
        """Count a closed buffer, and charge its object and its runs to their rate limits."""
        now_s = self._loop.time()
        self.awaited.clear()
        self.counters.closed[reason] += 1
        self.counters.object_bytes.add(size_bytes)
        self._runs.take(runs, now_s=now_s)
        if size_bytes < LARGE_BYTES:
            self._objects.take(1, now_s=now_s)

    def close_for_memory(self) -> None:
        """Close all buffers that can be uploaded, because the memory for batches is used up."""
        for buffer in self._open():
            if buffer.can_upload:
                buffer.close_buffer(Reason.MEMORY)

    def stop(self) -> None:
        """Stop the timer that closes produce buffers before they are full."""
        if self._check is not None:
            self._check.cancel()
            self._check = None
        self._quiet_s = 0.0
        self._stopped = True

    def _open(self) -> list[OpenBuffer]:
        return [buffer for buffer in self._buffers() if buffer.has_batches]

    def _no_more_can_come(self) -> bool:
        """Return whether producers will probably send nothing until they are answered."""
        return self.awaited.have_come and not any(each.is_writing for each in self._buffers())

    def _check_by(self, when_s: float) -> None:
        """Check at a loop time, or earlier, whether buffers may close."""
        if self._check is not None:
            if self._check_at_s <= when_s:
                return
            self._check.cancel()
        self._check_at_s = when_s
        self._check = self._loop.call_at(when_s, self._close_if_quiet)

    def _close_if_quiet(self) -> None:
        """Close all open buffers if producers are quiet, or schedule the next check."""
        self._check = None
        now_s = self._loop.time()
        if self.validating:
            self._check_by(now_s + self._quiet_s)
            return
        quiet_at = max(self._appended_at, self._received_at()) + self._quiet_s
        if now_s < quiet_at and not self._no_more_can_come():
            self._check_by(quiet_at)
            return
        buffers = self._open()
        if not buffers or not all(buffer.can_upload for buffer in buffers):
            return  # the next append, or the end of an upload, checks again
        wait_s = self._budget_wait_s(buffers, now_s)
        if wait_s is None:
            return
        if wait_s > 0:
            self._check_by(now_s + max(wait_s, SHORTEST_WAIT_S))
            return
        for buffer in buffers:
            buffer.close_buffer(Reason.QUIET)

    def _budget_wait_s(self, buffers: list[OpenBuffer], now_s: float) -> float | None:
        """Return the seconds until rate limits allow to close these buffers, or None for never."""
        small = sum(buffer.open_bytes < LARGE_BYTES for buffer in buffers)
        runs = sum(buffer.open_runs for buffer in buffers)
        waits = [self._runs.wait_s(runs, now_s=now_s)]
        if small:
            waits.append(self._objects.wait_s(small, now_s=now_s))
        return None if None in waits else max(wait_s for wait_s in waits if wait_s is not None)
