"""Collects a broker's faults: why it cannot do its work, or does it badly.

Faults are computed when someone asks, from what the components know anyway; nothing is awaited.

Source: docs/design/health.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

from coordinator.controller.image import MetadataImage
from diskless.stores.watched import WatchedStore
from raft.interfaces import Degradation

FRESH_MS: Final = 4_000.0
"""A replica learns several times a second that it is level; one of this age is cut off, or slow."""

MISSING_S: Final = 60.0
"""So long after a 404 for a referenced object the broker is not ready."""

CLOCK_MS: Final = 60_000
"""A wall clock that differs by more from the controller's makes a broker unready."""


class ReplicatedCluster(Protocol):
    """The part of a `diskless.cluster.Cluster` whose age is checked."""

    @property
    def image(self) -> MetadataImage: ...

    def image_age_ms(self) -> float | None: ...

    def replica_age_ms(self, coordinator: int) -> float | None: ...


class MissingObjects(Protocol):
    """The service that notices missing objects."""

    last_missing: tuple[str, float] | None  # key, and when by the loop's clock


class BrokerHealth:
    """The faults of one broker."""

    def __init__(
        self,
        *,
        cluster: ReplicatedCluster,
        store: WatchedStore,
        fetch: MissingObjects,
        age_limit_ms: float,
        node_faults: Callable[[], Iterable[Degradation]],
        clock: Callable[[], float],
        clock_ahead_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        """Create the health of a broker from the faults of these components.

        Args:    age_limit_ms: past it a replica serves nothing.
                 node_faults: the faults of the node on which the broker runs: disks, logs, clock.
                 clock: the loop's, in seconds.
                 clock_ahead_ms: how far this node's wall clock is ahead of the controller's.
        """
        self._cluster = cluster
        self._store = store
        self._fetch = fetch
        self._age_limit_ms = min(FRESH_MS, age_limit_ms)
        self._node_faults = node_faults
        self._clock = clock
        self._clock_ahead_ms = clock_ahead_ms

    def faults(self) -> Iterator[Degradation]:
        """Yield the broker's present faults of object store, objects, replicas and wall clock."""
        fault = self._store.fault
        if fault is not None:
            yield Degradation("object_store", f"the object store failed: {fault}")
        missing = self._fetch.last_missing
        if missing is not None and self._clock() - missing[1] <= MISSING_S:
            text = f"object {missing[0]} is referenced and not in the store"
            yield Degradation("missing_object", text)
        yield from self._stale_replicas()
        ahead_ms = self._clock_ahead_ms()
        if abs(ahead_ms) > CLOCK_MS:
            way = "ahead of" if ahead_ms > 0 else "behind"
            text = f"the wall clock is {abs(ahead_ms) / 1_000:.0f} s {way} the controller's"
            yield Degradation("clock", text)

    def _stale_replicas(self) -> Iterator[Degradation]:
        cluster = self._cluster
        ages = {"__cluster_metadata-0": cluster.image_age_ms()} | {
            f"__diskless-metadata-{coordinator}": cluster.replica_age_ms(coordinator)
            for coordinator in range(cluster.image.coordinator_count)
        }
        for name, age_ms in ages.items():
            if age_ms is None:
                yield Degradation("replica", f"the replica of {name} has not caught up yet")
            elif age_ms > self._age_limit_ms:
                text = f"the replica of {name} is {age_ms / 1_000:.0f} s old"
                yield Degradation("replica", text)

    def unready_reason(self) -> str | None:
        """Return the reason to send clients to other brokers, or None without a reason.

        A broker that is fenced or starts has none: the controller knows that.
        """
        faults = (*self.faults(), *self._node_faults())
        return next((fault.reason for fault in faults if fault.unready), None)
