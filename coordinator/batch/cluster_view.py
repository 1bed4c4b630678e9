"""A narrow read interface to what only the controller knows.

The batch coordinator's log and the controller's are two logs. A decision may use what the other one
says, because a decision is made once, by a leader, and its outcome travels in the record: replaying
the record needs no view. So `decide` is given a `ClusterView`, and `apply` never is.

Every answer may be old, and no decision may become wrong by that. A stale retention setting deletes
what was allowed to go a moment ago; a stale broker epoch is caught by the lease, which is in the
coordinator's own log; a producer id that is not known yet counts as new, so it must start at 0. An
epoch that is above the view's is answered retriable: the view is old, or the epoch is made up.

Source: docs/design/batch-coordinator.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol
from uuid import UUID

from coordinator.features import Features


class Enforcer(Enum):
    """The party that may enforce a topic's retention: its `esker.retention.enforcer`."""

    COORDINATOR = "coordinator"
    EXTERNAL = "external"
    BOTH = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The settings of a topic that its batch coordinator acts on."""

    retention_ms: int | None = 7 * 24 * 3600 * 1000  # None: for ever
    retention_bytes: int | None = None  # of each partition; None: no limit
    enforcer: Enforcer = Enforcer.COORDINATOR


class ClusterView(Protocol):
    """The controller's image, as a batch coordinator sees it."""

    def features(self) -> Features:
        """Return the finalized feature levels of the cluster."""

    def topic_config(self, topic_id: UUID) -> TopicConfig | None:
        """Return a topic's effective retention settings, or None if the topic is unknown.

        The data of an unknown topic is kept.
        """

    def broker_epoch(self, broker_id: int) -> int | None:
        """Return the epoch of a broker's registration, or -1 if the broker is not registered.

        None if there is no controller: then any epoch may be the broker's.
        """

    def controller_epoch(self) -> int | None:
        """Return the epoch of the last committed record of the cluster log.

        None if there is no controller.
        """

    def producer_id_handed_out_ms(self, producer_id: int) -> int | None:
        """Return the time when the producer id's block was allocated, in ms since 1970.

        None if that is longer ago than is remembered, which is at least as long as producers'
        state lives. An id above every block that the view knows was handed out just now: its time
        is in the future.
        """

    def last_producer_id_before(self, time_ms: int) -> int:
        """Return the largest producer id allocated up to `time_ms`, or -1 if there is none.

        Ids whose time is no longer remembered count.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticView:
    """A view with fixed answers: for tests, and for clusters without a controller."""

    configs: Mapping[UUID, TopicConfig] = field(default_factory=dict)
    default_config: TopicConfig | None = TopicConfig()
    broker_epochs: Mapping[int, int] = field(default_factory=dict)
    committed_controller_epoch: int | None = None
    handed_out_ms: Mapping[int, int | None] = field(default_factory=dict)
    default_handed_out_ms: int | None = 2**62  # every producer id is new
    finalized: Features = field(default_factory=Features)  # no new formats

    def features(self) -> Features:
        """Return the fixed feature levels of this view."""
        return self.finalized

    def topic_config(self, topic_id: UUID) -> TopicConfig | None:
        """Return the fixed settings of a topic, or this view's default settings."""
        return self.configs.get(topic_id, self.default_config)

    def broker_epoch(self, broker_id: int) -> int | None:
        """Return the broker epoch that this view was given, or None if it lacks the broker."""
        return self.broker_epochs.get(broker_id)

    def controller_epoch(self) -> int | None:
        """Return the fixed controller epoch of this view, or None if it has no controller."""
        return self.committed_controller_epoch

    def producer_id_handed_out_ms(self, producer_id: int) -> int | None:
        """Return the fixed allocation time of a producer id, or this view's default time."""
        return self.handed_out_ms.get(producer_id, self.default_handed_out_ms)

    def last_producer_id_before(self, time_ms: int) -> int:
        """Return the largest fixed producer id allocated up to `time_ms`, or -1 if none was."""
        return last_id_before(self.handed_out_ms, time_ms)


def last_id_before(times_ms: Mapping[int, int | None], time_ms: int) -> int:
    """Return the largest id whose time is unknown or at most `time_ms`, or -1 if no id qualifies.

    >>> last_id_before({3: None, 7: 1_000, 9: 2_000}, 1_500), last_id_before({}, 0)
    (7, -1)
    """
    old = (key for key, at_ms in times_ms.items() if at_ms is None or at_ms <= time_ms)
    return max(old, default=-1)
