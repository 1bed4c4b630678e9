"""Tells the settings of Apache Kafka that Esker ignores from those that it refuses.

Most of Kafka's settings are about threads, replicas and files that do not exist here. They are
accepted, and the node lists them once when it starts. Settings whose absence would break a promise
(security, policies, secrets from elsewhere) are refused with the reason.

Source: Apache Kafka 4.3, Configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from coordinator.controller.kafka_keys import KAFKA_BROKER_KEYS

_TLS: Final = (
    "this setting of TLS or SASL is not supported: remove the line (docs/configuration.md has "
    "those that are)"
)
_POLICY: Final = "plugged-in classes of Java are not supported: remove the line"
_ZOOKEEPER: Final = (
    "there is no ZooKeeper: set process.roles, node.id and controller.quorum.voters instead"
)

_REFUSED: Final[Mapping[str, str]] = {
    "alter.config.policy.class.name": _POLICY,
    "client.quota.callback.class": _POLICY,
    "config.providers": "values from config providers are not supported: write the value itself",
    "create.topic.policy.class.name": _POLICY,
    "delete.topic.enable": "topics can always be deleted: remove the line, or say true",
    "early.start.listeners": "listeners start in one order: remove the line",
    "principal.builder.class": _POLICY,
    "remote.log.storage.system.enable": "tiered storage is not supported: remove the line",
    "transaction.two.phase.commit.enable": "two-phase commit is not supported: remove the line",
}
_REFUSED_PREFIXES: Final[Mapping[str, str]] = {
    "delegation.token.": "delegation tokens are not supported: remove the line",
    "sasl.": _TLS,
    "security.": _TLS,
    "ssl.": _TLS,
    "zookeeper.": _ZOOKEEPER,
}
_HARMLESS: Final = {
    ("delete.topic.enable", "true"),
    ("remote.log.storage.system.enable", "false"),
    ("transaction.two.phase.commit.enable", "false"),
    ("ssl.protocol", "TLSv1.2"),
    ("ssl.protocol", "TLSv1.3"),
}
_BETWEEN_BROKERS: Final = {"security.inter.broker.protocol", "sasl.mechanism.inter.broker.protocol"}
"""Settings without effect: brokers do not connect to each other here."""


def refusal_of(key: str, value: str) -> str | None:
    """Return the reason to refuse a Kafka setting, or None for a setting safe to ignore."""
    if not value or (key, value) in _HARMLESS or key in _BETWEEN_BROKERS:
        return None
    by_prefix = (reason for start, reason in _REFUSED_PREFIXES.items() if key.startswith(start))
    return _REFUSED.get(key) or next(by_prefix, None)


def is_without_effect(key: str) -> bool:
    """Return whether a setting that Esker does not define is a setting of Kafka."""
    return key in KAFKA_BROKER_KEYS or key in _REFUSED or key.startswith(tuple(_REFUSED_PREFIXES))
