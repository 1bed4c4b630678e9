"""Settings of a broker, and of topics that it creates."""

from __future__ import annotations

from typing import Final

from coordinator.controller.mutation_quotas import MutationWindow
from diskless.quotas.rates import Windows
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
        500,
        "Milliseconds between two heartbeats of a broker; at most half of its session.",
    ),
    Setting(
        "initial.broker.registration.timeout.ms",
        MILLISECONDS,
        60_000,
        "Milliseconds within which a starting broker must have registered, or it exits.",
    ),
    Setting(
        "auto.create.topics.enable",
        boolean,
        True,
        "Create a missing topic that a client's Metadata request names and allows to be created.",
    ),
    Setting(
        "num.partitions",
        integer(1, 100_000),
        1,
        "Number of partitions of a topic that is created without a number.",
    ),
    Setting(
        "default.replication.factor",
        integer(1, 32_767),
        1,
        "Number of replicas of a topic that is created without a number.",
    ),
    Setting(
        "quota.window.num",
        integer(1, 1_000),
        Windows().samples,
        "Samples that the rates of clients with quotas are made of.",
    ),
    Setting(
        "quota.window.size.seconds",
        integer(1, 86_400),
        Windows().size_ms // 1_000,
        "Seconds of one sample of a client's rate.",
    ),
    Setting(
        "controller.quota.window.num",
        integer(1, 1_000),
        MutationWindow().samples,
        "Samples of controller mutations: a client may save up so many, as its quota is for one.",
    ),
    Setting(
        "controller.quota.window.size.seconds",
        integer(1, 86_400),
        MutationWindow().size_s,
        "Seconds of one sample of controller mutations.",
    ),
)
