"""Decides which brokers clients should not be sent to, though they are members.

A broker that cannot do its work says why in its heartbeats. The active controller writes that down
only after a while, and never of more than half of the brokers: a fault of the store is a fault of
all of them, and then somebody must serve all the same. Placement alone reads what is written;
groups, leases and epochs stay where they are.

The reports are a leadership's own state, as the sessions are, on its monotonic clock. A new leader,
and one that was paused, begins all graces anew: what it did not see it does not count.

Source: docs/design/health.md#not-preferred.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from coordinator.controller.decide.context import Context, Decision
from coordinator.controller.image import MetadataImage
from coordinator.features import may_write_format
from records.metadata import BrokerRegistrationChangeRecord, RegisterBrokerRecord

LEVEL: Final = 2  # of esker.version: the first that has the field
UNREADY_MS: Final = 10_000  # before a broker is not preferred any more
READY_MS: Final = 30_000  # before it is preferred again
PAUSE_MS: Final = 1_000  # between two changes
ABSENCE_MS: Final = 2_000  # a tick as late as this shows a pause of this process
MAX_REASON: Final = 200  # characters


class Change(NamedTuple):
    """A broker that is to be preferred again, or no longer."""

    broker_id: int
    broker_epoch: int
    reason: str  # why it is not preferred; empty: it is


@dataclass(slots=True)
class _Report:
    broker_epoch: int
    reason: str | None  # why the broker is not ready; None: it is
    since_ms: int  # that it has been ready, or not ready


class Preferences:
    """The reports of brokers to one active controller. Times are ms of a monotonic clock."""

    def __init__(self) -> None:
        self.changes = 0  # by this node, since it started
        self._reports: dict[int, _Report] = {}
        self._changed_ms: int | None = None
        self._ticked_ms = 0

    def begin(self, now_ms: int) -> None:
        """Forget all brokers' readiness reports at the start of a leadership."""
        self._reports.clear()
        self._changed_ms = None
        self._ticked_ms = now_ms

    def tick(self, now_ms: int) -> None:
        """Record the time; after a pause of this process, restart every broker's waiting period."""
        if now_ms - self._ticked_ms > ABSENCE_MS:
            for report in self._reports.values():
                report.since_ms = now_ms
        self._ticked_ms = now_ms

    def note(self, broker_id: int, broker_epoch: int, reason: str | None, now_ms: int) -> None:
        """Record a broker's readiness; restart its waiting period if the readiness changed."""
        if reason is not None:
            reason = reason[:MAX_REASON] or "it gives no reason"
        report = self._reports.get(broker_id)
        if report is None or (report.reason is None) != (reason is None):
            self._reports[broker_id] = _Report(broker_epoch, reason, now_ms)
        else:
            report.broker_epoch, report.reason = broker_epoch, reason

    def choose(self, image: MetadataImage, now_ms: int) -> list[Change]:
        """Return due changes of preferred brokers: one, or enough to make half preferred."""
        brokers = serving_brokers(image)
        preferred = [broker_id for broker_id in brokers if is_preferred(brokers[broker_id])]
        others = [broker_id for broker_id in brokers if broker_id not in preferred]
        needed = least_preferred(len(brokers))
        if len(preferred) < needed:
            least_bad = sorted(others, key=self._badness)[: needed - len(preferred)]
            return [
                Change(broker_id, brokers[broker_id].broker_epoch, "") for broker_id in least_bad
            ]
        if self._changed_ms is not None and now_ms - self._changed_ms < PAUSE_MS:
            return []
        for broker_id in sorted(others, key=self._badness):
            report = self._reports.get(broker_id)
            if report and report.reason is None and now_ms - report.since_ms >= READY_MS:
                return [Change(broker_id, brokers[broker_id].broker_epoch, "")]
        if len(preferred) > needed:
            for broker_id in sorted(preferred, key=self._badness, reverse=True):
                report = self._reports.get(broker_id)
                if report and report.reason and now_ms - report.since_ms >= UNREADY_MS:
                    return [Change(broker_id, brokers[broker_id].broker_epoch, report.reason)]
        return []

    def note_changes(self, changes: list[Change], now_ms: int) -> None:
        """Count these changes of preferred brokers, and record the time of the last change."""
        self.changes += len(changes)
        self._changed_ms = now_ms

    def _badness(self, broker_id: int) -> tuple[int, int, int]:
        """Return a sort key: ready brokers come first, brokers unready for longest come last."""
        report = self._reports.get(broker_id)
        if report is None:
            return (1, 0, broker_id)
        if report.reason is None:
            return (0, report.since_ms, broker_id)
        return (2, -report.since_ms, broker_id)


def may_write_preference(image: MetadataImage) -> bool:
    """Return whether the cluster's feature level allows records of preferred brokers."""
    return may_write_format(image.features, LEVEL)


def is_preferred(broker: RegisterBrokerRecord) -> bool:
    """Return whether a broker is preferred: its record has an empty `unpreferred_reason`."""
    return not broker.unpreferred_reason


def least_preferred(serving: int) -> int:
    """Return the least number of preferred brokers among `serving` brokers: half, rounded up.

    >>> [least_preferred(serving) for serving in range(6)]
    [0, 1, 1, 2, 2, 3]
    """
    return (serving + 1) // 2


def serving_brokers(image: MetadataImage) -> Mapping[int, RegisterBrokerRecord]:
    """Return the brokers that are unfenced and not in controlled shutdown, by rising id."""
    return {
        broker_id: broker
        for broker_id, broker in sorted(image.brokers.items())
        if not broker.fenced and not broker.in_controlled_shutdown
    }


def change_preferences(context: Context, preferences: Preferences, now_ms: int) -> Decision:
    """Write the due changes of the set of preferred brokers, and respond with these changes."""
    if not may_write_preference(context.image):
        return Decision((), ())
    changes = preferences.choose(context.image, now_ms)
    if changes:
        preferences.note_changes(changes, now_ms)
    records = tuple(
        BrokerRegistrationChangeRecord(
            broker_id=change.broker_id,
            broker_epoch=change.broker_epoch,
            unpreferred_reason=change.reason,
        )
        for change in changes
    )
    return Decision(records, tuple(changes))
