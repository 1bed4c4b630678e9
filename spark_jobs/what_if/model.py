"""Sends a history through brokers with other settings, and counts objects, GETs and money.

    now = Settings(brokers=2)
    before = predict(history, now, now)
    after = predict(history, now, now._replace(interval_ms=1_000))

A buffer is closed by the rules of `diskless.produce.closing`: by its size, by the interval, or when
no batch came for the quiet time and the budget of small objects has a token. The commit is one for
each object.

The trap: producers that wait for answers send at other times if answers come at other times. The
model sends the history as it was. So its objects for the settings in force differ from those in the
log, and each prediction is scaled by that ratio (`fit`).

Reads are in no log. The model's consumers read all partitions as they are written, in each zone,
from the broker that placement names there; a broker reads an object that it did not write itself
by one GET for each of its consumers' connections that has a partition in it.

Source: docs/what-if.md; docs/design/broker.md#when-a-buffer-is-closed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from coordinator.controller.placement import PlacedBroker, leaders
from spark_jobs.prices import Prices
from spark_jobs.what_if.history import History

LARGE_BYTES: Final = 768 * 1024
"""An object of this size takes no token (`diskless.produce.closing`)."""

MONTH_MS: Final = 730 * 3_600_000
SEED: Final = 20_231
JITTER_MS: Final = 500
"""Within so much before and after it a batch is repeated if the load is higher."""


class Settings(NamedTuple):
    """What may be otherwise. `brokers` are processes, alike and spread evenly over the zones."""

    brokers: int
    zones: int = 1
    coordinators: int = 1
    interval_ms: int = 250  # diskless.append.commit.interval.ms
    buffer_bytes: int = 8 * 1024 * 1024  # diskless.append.buffer.max.bytes
    quiet_ms: int = 5  # esker.append.quiet.ms; 0: never
    objects_per_second: int = 8  # esker.append.objects.per.second, of small ones, of each broker
    consumers: int = 1  # connections that share the partitions, in each zone; 0: nobody reads
    load: float = 1.0  # times what was sent


class SettingsError(Exception):
    """Settings that no cluster can have. One sentence."""


def check(settings: Settings) -> None:
    """Raise SettingsError if no cluster can have these settings."""
    for name in ("brokers", "zones", "coordinators", "interval_ms", "buffer_bytes"):
        if getattr(settings, name) < 1:
            raise SettingsError(f"{name.replace('_', '-')} must be at least 1")
    if settings.zones > settings.brokers:
        raise SettingsError(
            f"{settings.zones} zones need as many brokers, and there are {settings.brokers}: "
            "give --brokers, too"
        )


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the history would have cost. Rates are a second, money a month of 730 hours."""

    settings: Settings
    objects: float  # of the whole history: PUTs, and commits
    runs: float  # partitions in them: rows in the coordinators' state
    gets: float
    size_bytes: int
    batches: int
    duration_ms: int
    wait_p50_ms: float  # of a batch in its buffer, before its upload begins
    wait_p99_ms: float
    put_amount: float
    get_amount: float

    @property
    def object_bytes(self) -> float:
        """Return the mean size of an object."""
        return self.size_bytes / self.objects if self.objects else 0.0

    def rate(self, count: float) -> float:
        """Return a count of the history as a number a second."""
        return count * 1_000 / self.duration_ms


@dataclass(slots=True)
class _Buffer:
    """The open buffer of one coordinator in one broker."""

    opened_at: float = 0.0
    size_bytes: int = 0
    keys: set[int] = field(default_factory=set)
    arrivals: list[float] = field(default_factory=list)


class _Object(NamedTuple):
    broker: int
    keys: frozenset[int]


class _Broker:
    """One broker's open buffers, by the rules of `diskless.produce.closing`."""

    def __init__(self, number: int, settings: Settings, sink: _Sink) -> None:
        self._number = number
        self._settings = settings
        self._sink = sink
        self._buffers: dict[int, _Buffer] = {}
        self._tokens = float(settings.objects_per_second)
        self._filled_at = 0.0
        self._appended_at = 0.0

    def append(self, time: float, size: int, key: int, coordinator: int) -> None:
        """Take a batch, after everything that happens before it."""
        self.advance(time)
        buffer = self._buffers.get(coordinator)
        if buffer is not None and buffer.size_bytes + size > self._settings.buffer_bytes:
            self._close(coordinator, time)
            buffer = None
        if buffer is None:
            buffer = self._buffers[coordinator] = _Buffer(time)
        buffer.size_bytes += size
        buffer.keys.add(key)
        buffer.arrivals.append(time)
        self._appended_at = time
        if buffer.size_bytes >= self._settings.buffer_bytes:
            self._close(coordinator, time)

    def advance(self, until: float) -> None:
        """Close the buffers that are due before a time."""
        while self._buffers:
            coordinator, oldest = min(self._buffers.items(), key=lambda one: one[1].opened_at)
            by_interval = oldest.opened_at + self._settings.interval_ms
            by_quiet = self._quiet_at()
            if min(by_interval, by_quiet) > until:
                return
            if by_quiet < by_interval:
                for one in list(self._buffers):
                    self._close(one, by_quiet)
            else:
                self._close(coordinator, by_interval)

    def _quiet_at(self) -> float:
        """Return when all buffers are closed because producers are quiet, if nothing comes."""
        settings = self._settings
        if not settings.quiet_ms:
            return float("inf")
        small = sum(one.size_bytes < LARGE_BYTES for one in self._buffers.values())
        at = self._appended_at + settings.quiet_ms
        if small and not settings.objects_per_second:
            return float("inf")
        if small:
            missing = min(small, settings.objects_per_second) - self._level(at)
            at += max(0.0, missing * 1_000 / settings.objects_per_second)
        return at

    def _level(self, at: float) -> float:
        limit = float(self._settings.objects_per_second)
        return min(limit, self._tokens + (at - self._filled_at) * limit / 1_000)

    def _close(self, coordinator: int, at: float) -> None:
        buffer = self._buffers.pop(coordinator)
        if buffer.size_bytes < LARGE_BYTES:
            self._tokens, self._filled_at = max(0.0, self._level(at) - 1), at
        self._sink.take(_Object(self._number, frozenset(buffer.keys)), buffer.arrivals, at)


class _Sink:
    """Counts objects, and what reading them takes."""

    def __init__(self, settings: Settings, readers: list[list[int]]) -> None:
        self.objects = self.runs = 0
        self.gets = 0.0
        self.waits: list[float] = []
        self._consumers = settings.consumers
        self._readers = readers  # of each zone: the broker of each key

    def take(self, made: _Object, arrivals: list[float], at: float) -> None:
        """Count an object that is closed at a time."""
        self.objects += 1
        self.runs += len(made.keys)
        self.waits += [at - arrived for arrived in arrivals]
        if not self._consumers:
            return
        for brokers in self._readers:
            keys_of: dict[int, int] = {}
            for key in made.keys:
                keys_of[brokers[key]] = keys_of.get(brokers[key], 0) + 1
            for broker, keys in keys_of.items():
                if broker != made.broker:
                    # The expected number of connections that have at least one of the keys.
                    self.gets += self._consumers * (1 - (1 - 1 / self._consumers) ** keys)


def predict(
    history: History,
    now: Settings,
    then: Settings,
    *,
    prices: Prices | None = None,
) -> Prediction:
    """Predict what a history's producers would have caused under the settings `then`.

    Args:    now: the settings under which it was written.
    Raises:  SettingsError.
    """
    check(now)
    check(then)
    fit = history.objects / max(1, _simulate(history, now, now).objects)
    made = _simulate(history, now, then)
    prices = prices or Prices()
    objects, gets = made.objects * fit, made.gets * fit
    months = history.duration_ms / MONTH_MS
    batches = round(len(history.times) * then.load)
    waits = np.array(made.waits)
    return Prediction(
        settings=then,
        objects=objects,
        runs=made.runs * fit,
        gets=gets,
        size_bytes=round(int(history.sizes.sum()) * then.load),
        batches=batches,
        duration_ms=history.duration_ms,
        wait_p50_ms=float(np.percentile(waits, 50)),
        wait_p99_ms=float(np.percentile(waits, 99)),
        put_amount=objects / months / 1_000 * prices.put_per_1000,
        get_amount=gets / months / 1_000 * prices.get_per_1000,
    )


def _simulate(history: History, now: Settings, then: Settings) -> _Sink:
    readers = _readers(history, then)
    sink = _Sink(then, readers)
    brokers = [_Broker(number, then, sink) for number in range(then.brokers)]
    takers = _takers(history, now, then, readers)
    coordinators = _coordinators(history, now, then)
    for index, time in _arrivals(history, then.load):
        key = int(history.keys[index])
        size = int(history.sizes[index])
        brokers[takers(index)].append(time, size, key, coordinators[key])
    for broker in brokers:
        broker.advance(float("inf"))
    return sink


def _arrivals(history: History, load: float) -> Iterator[tuple[int, float]]:
    """Yield the index and time of each batch, as many times as the load says, by rising time."""
    count = len(history.times)
    if load == 1.0:
        yield from enumerate(map(float, history.times))
        return
    random = np.random.default_rng(SEED)
    indexes = np.repeat(np.arange(count), int(load))
    more = random.choice(count, round(count * (load - int(load))), replace=False)
    indexes = np.concatenate([indexes, more])
    times = history.times[indexes] + random.uniform(-JITTER_MS, JITTER_MS, len(indexes))
    order = np.argsort(times, kind="stable")
    yield from zip(map(int, indexes[order]), map(float, times[order]), strict=True)


def _zone(broker: int, settings: Settings) -> str:
    return str(broker % settings.zones)


def _readers(history: History, settings: Settings) -> list[list[int]]:
    """Return the broker that placement names for each partition, by zone."""
    placed = [PlacedBroker(one, _zone(one, settings)) for one in range(settings.brokers)]
    zones = [str(zone) for zone in range(min(settings.zones, settings.brokers))]
    of_keys = [leaders(topic, partition, placed)[1] for topic, partition, _ in history.partitions]
    return [[by_rack[zone] for by_rack in of_keys] for zone in zones]


class _Takers:
    """Which broker takes each batch: that of its partition, in its producer's zone."""

    def __init__(self, history: History, now: Settings, readers: list[list[int]]) -> None:
        ids = sorted(set(history.brokers.tolist()))
        racks = sorted({rack for rack in history.racks.values() if rack is not None})
        self._zones = [
            (
                racks.index(str(history.racks[one]))
                if history.racks.get(one) in racks
                else number % now.zones
            )
            for number, one in enumerate(ids)
        ]
        self._numbers = np.searchsorted(np.array(ids), history.brokers)
        self._keys = history.keys
        self._readers = readers

    def __call__(self, index: int) -> int:
        zone = self._zones[int(self._numbers[index])] % len(self._readers)
        return self._readers[zone][int(self._keys[index])]


class _SameTakers:
    """The brokers that took the batches, numbered from 0 on."""

    def __init__(self, history: History) -> None:
        ids = np.array(sorted(set(history.brokers.tolist())))
        self._numbers = np.searchsorted(ids, history.brokers)

    def __call__(self, index: int) -> int:
        return int(self._numbers[index])


def _takers(
    history: History, now: Settings, then: Settings, readers: list[list[int]]
) -> _Takers | _SameTakers:
    is_same = (now.brokers, now.zones) == (then.brokers, then.zones)
    if is_same and len(set(history.brokers.tolist())) <= then.brokers:
        return _SameTakers(history)
    return _Takers(history, now, readers)


def _coordinators(history: History, now: Settings, then: Settings) -> list[int]:
    """Return the coordinator of each partition: a topic is one coordinator's as a whole."""
    if then.coordinators == now.coordinators:
        return [coordinator for _, _, coordinator in history.partitions]
    topics: dict[object, int] = {}
    return [
        topics.setdefault(topic, len(topics)) % then.coordinators
        for topic, _, _ in history.partitions
    ]
