"""The log of consumer groups on a node, which leads it or reads its replica.

    JoinedServices([..., GroupLogNodeService(host, settings, listen)])     of a voter
    OwnMachines(host, {})                                     of an observer: it has a GroupReplica

Every voter of the quorum has the whole: a state machine of `__consumer_offsets-0`, what decides if
the node leads it, its requests on the listener, and a timer that sweeps what is over. A broker
observes the log and needs the state alone, to list groups and to find those that no request names.

The surprise is what a node tells the log of the *other* log: which brokers are unfenced, so that a
group's ownership goes to the chosen one only, and which topics are gone, so that their offsets go
too. Both are as of this node's replica of `__cluster_metadata-0`, which may be behind. Neither is
relied on: an ownership that went to the wrong broker costs a move, and an offset that is left over
is of a topic id that no client asks for again.

Source: docs/design/groups.md; KIP-211 (expiry, and deleted topics).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final
from uuid import UUID

from coordinator.controller.image import MetadataImage, TopicImage
from coordinator.controller.placement import unfenced_brokers
from coordinator.features import Features
from coordinator.groups.leader import GroupLog
from coordinator.groups.machine import GroupMachine
from coordinator.groups.service import group_log_handlers
from coordinator.groups.settings import LogSettings
from coordinator.groups.state import Group
from coordinator.persistent_map import Map
from raft.driver.node_services import ServiceHost
from raft.interfaces import ReplicatedLog
from raft.net.handlers import Served
from records.internal_topics import CONSUMER_OFFSETS
from records.types import Offset

Listen = Callable[[Callable[[MetadataImage], None]], None]
"""Hear of every image of the cluster, at once of the present one."""

_NO_TOPICS: Final[Map[UUID, TopicImage]] = Map()


class ClusterNews:
    """The part of the cluster log that groups need: brokers, feature levels, deleted topics."""

    def __init__(self, topic_deleted: Callable[[UUID], None]) -> None:
        self.brokers: tuple[int, ...] | None = None  # unfenced; None: nothing is known yet
        self.broker_epochs: Mapping[int, int] = {}  # of the registered ones, fenced or not
        self.features = Features()  # for `may_write_format`
        self._topic_deleted = topic_deleted
        self._offset = Offset(0)  # of the newest image
        self._topics = _NO_TOPICS
        self._brokers: object = None  # of the image that `brokers` was made from

    def on_image(self, image: MetadataImage) -> None:
        """Update the live brokers and announce deleted topics; skip an outdated image.

        A log that is read again produces older images.
        """
        if image.offset <= self._offset:
            return
        self._offset, self.features = image.offset, image.features
        if image.brokers is not self._brokers:
            self._brokers = image.brokers
            self.brokers = tuple(broker.broker_id for broker in unfenced_brokers(image))
            self.broker_epochs = {
                broker_id: broker.broker_epoch for broker_id, broker in image.brokers.items()
            }
        if image.topics is not self._topics:
            before, self._topics = self._topics, image.topics
            for topic_id in before.gone(image.topics):
                self._topic_deleted(topic_id)


class GroupReplica:
    """The groups as a replica of their log has them (`raft.driver.node_services.NodeService`)."""

    def __init__(self, host: ServiceHost) -> None:
        self.handlers: Mapping[int, Served] = {}
        self.machine: GroupMachine | None = None
        self._host = host

    def groups(self) -> Iterable[tuple[str, Group]]:
        """Return all consumer groups in any order, or none before their log has started."""
        return self.machine.image.groups.items() if self.machine is not None else ()

    def begin(self, log: ReplicatedLog, topic: str, partition: int, directory: Path) -> None:  # noqa: ARG002
        """Create and host the state machine of the consumer groups' log when the log starts."""
        if (topic, partition) == (CONSUMER_OFFSETS, 0):
            self.machine = GroupMachine()
            self._host.host(log, self.machine)
            self._begun(log, self.machine)

    def _begun(self, log: ReplicatedLog, machine: GroupMachine) -> None:
        """Do nothing when the groups' log starts, because a plain replica never leads the log."""

    async def end(self, topic: str, partition: int) -> None:
        """Drop the state machine of the consumer groups when their log ends."""
        if (topic, partition) == (CONSUMER_OFFSETS, 0):
            self.machine = None


class GroupLogNodeService(GroupReplica):
    """The groups' log on a voter, which decides where it leads and answers brokers."""

    def __init__(self, host: ServiceHost, settings: LogSettings, listen: Listen) -> None:
        """Create a voter's service for the log of the consumer groups; it is not started yet.

        Args:  listen: to this node's replica of the cluster log; called when the group begins.
        """
        super().__init__(host)
        self.handlers = group_log_handlers(lambda: self.log)
        self.log: GroupLog | None = None
        self.swept = 0  # records that sweeps of this node have written
        self._settings = settings
        self._listen = listen
        self._news: ClusterNews | None = None
        self._timer: asyncio.TimerHandle | None = None

    def _begun(self, log: ReplicatedLog, machine: GroupMachine) -> None:
        if self._news is None:  # a listener cannot be removed, so this is done once
            self._news = ClusterNews(self._topic_deleted)
            self._listen(self._news.on_image)
        news = self._news
        self.log = GroupLog(
            log,
            machine,
            self._settings,
            call_soon=self._host.call_soon,
            wall_ms=lambda: time.time_ns() // 1_000_000,
            brokers=lambda: news.brokers,
            broker_epochs=lambda: news.broker_epochs,
            features=lambda: news.features,
        )
        log.watch(self.log)
        self._sweep_later()

    async def end(self, topic: str, partition: int) -> None:
        """Stop the expiry timer and drop the state when the consumer groups' log ends."""
        await super().end(topic, partition)
        if self.machine is None:
            self.log = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _topic_deleted(self, topic_id: UUID) -> None:
        if self.log is not None:
            self.log.topic_deleted(topic_id)

    def _sweep_later(self) -> None:
        delay_s = self._settings.retention_check_interval_ms / 1_000
        self._timer = self._host.call_later(delay_s, self._sweep)

    def _sweep(self) -> None:
        assert self.log is not None, "a timer that outlived its group"
        self.log.expire_groups(self._swept)
        self._sweep_later()

    def _swept(self, records: int) -> None:
        self.swept += records
