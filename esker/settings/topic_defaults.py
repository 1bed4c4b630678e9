"""Defaults of topic settings, as a properties file gives them.

A topic's own value and the cluster's default (`esker configs alter`) come before them. They hold
where they stand: retention is decided by the quorum's nodes, the rules of batches by brokers. So
every node should have the same.

Source: Apache Kafka 4.3, Configuration (`log.*`, `message.max.bytes`); KIP-226 for the order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from coordinator.controller.config_defs import TOPIC_CONFIGS
from esker.settings.base import Setting
from esker.settings.values import checked, integer

_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 60 * _MINUTE_MS


_BY_BROKER_NAME: Final = {
    definition.broker_name: (name, definition)
    for name, definition in TOPIC_CONFIGS.items()
    if definition.broker_name is not None
}

SETTINGS: Final = (
    *(
        Setting(
            broker_name,
            checked(definition, str.strip),
            None,
            f"Default of the topic setting `{name}`; without it: {definition.default}.",
        )
        for broker_name, (name, definition) in _BY_BROKER_NAME.items()
    ),
    Setting(
        "log.retention.minutes",
        integer(-1, 2**31 - 1),
        None,
        "As `log.retention.ms`, in minutes, if that is not given; -1: no limit.",
    ),
    Setting(
        "log.retention.hours",
        integer(-1, 2**31 - 1),
        None,
        "As `log.retention.ms`, in hours, if neither that nor the minutes are given; -1: no limit.",
    ),
)


def topic_defaults(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the topic defaults set in a properties file, by the broker setting's name.

    >>> topic_defaults({"log.retention.hours": 2, "message.max.bytes": "1000"})
    {'message.max.bytes': '1000', 'log.retention.ms': '7200000'}
    """
    found = {name: values[name] for name in _BY_BROKER_NAME if values.get(name) is not None}
    for key, unit_ms in (("log.retention.minutes", _MINUTE_MS), ("log.retention.hours", _HOUR_MS)):
        number = values.get(key)
        if number is not None and "log.retention.ms" not in found:
            found["log.retention.ms"] = str(number * unit_ms if number >= 0 else -1)
    return found
