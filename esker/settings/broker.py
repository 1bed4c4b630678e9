"""Settings of a broker, and of topics that it creates."""

from __future__ import annotations

from typing import Final

from esker.settings.base import Setting
from esker.settings.values import MILLISECONDS, boolean, integer

SETTINGS: Final = (
    Setting(
        "broker.rack",
        str,
        "",
        "The rack (availability zone) of this broker; clients in it are sent here.",
    ),
    Setting(
        "broker.heartbeat.interval.ms",
        MILLISECONDS,
        2_000,
        "Milliseconds between two signs of life of a broker; at most half of its session.",
    ),
    Setting(
        "initial.broker.registration.timeout.ms",
        MILLISECONDS,
        60_000,
        "Milliseconds within which a starting broker must have become a member, or it gives up.",
    ),
    Setting(
        "auto.create.topics.enable",
        boolean,
        True,
        "A topic that a client asks for by name, and allows to be created, is.",
    ),
    Setting(
        "num.partitions",
        integer(1, 100_000),
        1,
        "Partitions of a topic whose creator names no number.",
    ),
    Setting(
        "default.replication.factor",
        integer(1, 32_767),
        1,
        "Replicas of a topic whose creator names no number.",
    ),
)
