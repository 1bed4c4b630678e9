"""Measures a rate over a sliding window of samples, and how long its exceeding must be paid for.

    rate.record(bytes, now_ms)
    throttle_ms = rate.throttle_ms(limit, now_ms)

A window has `quota.window.num` samples of `quota.window.size.seconds` each; the newest is not full
yet. The rate divides by no less than all samples but one, so that one large request at first may
use what the whole window allows.

Source: KIP-13; upstream's Rate and SampledStat, QuotaUtils.throttleTime.
"""

from __future__ import annotations

from typing import Final, NamedTuple

MAX_THROTTLE_MS: Final = 2**31 - 1


class Windows(NamedTuple):
    """How many samples a rate has, and how long one is."""

    samples: int = 11
    size_ms: int = 1_000

    @property
    def span_ms(self) -> int:
        """Return how long a sample counts."""
        return self.samples * self.size_ms


class _Sample:
    __slots__ = ("last_ms", "start_ms", "value")

    def __init__(self, now_ms: int) -> None:
        self.value = 0.0
        self.start_ms = self.last_ms = now_ms

    def begin(self, now_ms: int) -> None:
        self.value = 0.0
        self.start_ms = self.last_ms = now_ms


class Rate:
    """The rate of one bucket, per second. Times are of any monotonic clock."""

    __slots__ = ("_current", "_samples", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._samples: list[_Sample] = []
        self._current = 0

    def record(self, value: float, now_ms: int) -> None:
        """Add a value to the newest sample, or to a new one if that is full."""
        if not self._samples:
            self._samples.append(_Sample(now_ms))
        sample = self._samples[self._current]
        if now_ms - sample.start_ms >= self._windows.size_ms:
            sample = self._advance(now_ms)
        sample.value += value
        sample.last_ms = now_ms

    def _advance(self, now_ms: int) -> _Sample:
        self._current = (self._current + 1) % (self._windows.samples + 1)
        if self._current == len(self._samples):
            self._samples.append(_Sample(now_ms))
        else:
            self._samples[self._current].begin(now_ms)
        return self._samples[self._current]

    def per_second(self, now_ms: int) -> float:
        """Return the rate now."""
        self._drop_old(now_ms)
        return sum(sample.value for sample in self._samples) * 1_000 / self._window_ms(now_ms)

    def throttle_ms(self, limit: float, now_ms: int) -> int:
        """Return how long to wait until the rate is down to `limit`, 0 if it is not above."""
        rate = self.per_second(now_ms)
        if rate <= limit:
            return 0
        return round(min((rate - limit) / limit * self._window_ms(now_ms), MAX_THROTTLE_MS))

    def is_idle(self, now_ms: int) -> bool:
        """Return whether nothing that counts was recorded."""
        self._drop_old(now_ms)
        return not any(sample.value for sample in self._samples)

    def _drop_old(self, now_ms: int) -> None:
        for sample in self._samples:
            if now_ms - sample.last_ms >= self._windows.span_ms:
                sample.begin(now_ms)

    def _window_ms(self, now_ms: int) -> int:
        """Return the time over which the values were recorded; at least all samples but one."""
        samples, size_ms = self._windows
        oldest_ms = min((sample.start_ms for sample in self._samples), default=now_ms)
        elapsed_ms = now_ms - oldest_ms
        missing = samples - 1 - elapsed_ms // size_ms
        return max(1, elapsed_ms + max(0, missing) * size_ms)
