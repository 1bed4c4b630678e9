"""The settings that topics and brokers may have: types, defaults, and what they may be.

A topic's setting overrides the cluster's default for all topics (a broker setting of the empty
name), which overrides the built-in one. What Esker does not act on is still accepted if an ordinary
Kafka client may send it and nothing is lost by ignoring it; what would be lost is refused:
`cleanup.policy=compact` (nobody compacts, and Connect and Streams rely on it), and
`diskless.enable=false` (there are no other topics).

Source: upstream's TopicConfig; KIP-1163, Public Interfaces.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple

from coordinator.controller.errors import RefusedError
from records.kafka_errors import ErrorCode

MAX_NAME_LENGTH: Final = 249  # of a setting, as of a topic
MAX_VALUE_BYTES: Final = 32_767  # as long as a string of the wire may be


class ConfigType(IntEnum):
    """DescribeConfigs' types. Source: KIP-569."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class ConfigDef(NamedTuple):
    """One setting."""

    type: ConfigType
    default: str
    check: Callable[[str], str | None]  # what is wrong with a value, or None
    about: str
    broker_name: str | None = None  # of the cluster-wide default; None: there is none


_WHOLE: Final = re.compile(r" *[+-]?[0-9]{1,20} *")


def _number(lowest: int, highest: int) -> Callable[[str], str | None]:
    def check(value: str) -> str | None:
        if not _WHOLE.fullmatch(value):  # Python's int() takes more than Java's
            return "is not a whole number"
        number = int(value)
        return None if lowest <= number <= highest else f"is outside {lowest}..{highest}"

    return check


def _one_of(*allowed: str) -> Callable[[str], str | None]:
    def check(value: str) -> str | None:
        return None if value in allowed else f"is none of {', '.join(allowed)}"

    return check


def _fraction(value: str) -> str | None:
    try:
        number = float(value)
    except ValueError:
        return "is not a number"
    return None if 0 <= number <= 1 else "is outside 0..1"


def _cleanup(value: str) -> str | None:
    if value == "delete":
        return None
    return "is not supported: diskless topics are cleaned up by delete only"


def _diskless(value: str) -> str | None:
    if value == "true":
        return None
    return "is not supported: every topic of this cluster is diskless"


def _producer(value: str) -> str | None:
    if value == "producer":
        return None
    return "is not supported: batches are stored as their producer sent them"


def _anything(value: str) -> str | None:  # noqa: ARG001 (a check's)
    return None


_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1
_LONG: Final = ConfigType.LONG
_INT: Final = ConfigType.INT
_BOOL: Final = ConfigType.BOOLEAN
_TEXT: Final = ConfigType.STRING
_true_or_false = _one_of("true", "false")

TOPIC_CONFIGS: Final[dict[str, ConfigDef]] = {
    "cleanup.policy": ConfigDef(
        ConfigType.LIST, "delete", _cleanup, "What becomes of old data.", "log.cleanup.policy"
    ),
    "compression.type": ConfigDef(
        _TEXT, "producer", _producer, "Who compresses batches.", "compression.type"
    ),
    "diskless.enable": ConfigDef(_BOOL, "true", _diskless, "Records live in object storage."),
    "esker.retention.enforcer": ConfigDef(
        _TEXT,
        "coordinator",
        _one_of("coordinator", "external", "both"),
        "Who deletes what retention lets go.",
        "esker.retention.enforcer",
    ),
    "max.message.bytes": ConfigDef(
        _INT, "1048588", _number(0, _INT_MAX), "The largest batch.", "message.max.bytes"
    ),
    "message.timestamp.after.max.ms": ConfigDef(
        _LONG,
        "3600000",
        _number(0, _LONG_MAX),
        "How far a record's time may lie ahead.",
        "log.message.timestamp.after.max.ms",
    ),
    "message.timestamp.before.max.ms": ConfigDef(
        _LONG,
        str(_LONG_MAX),
        _number(0, _LONG_MAX),
        "How far a record's time may lie behind.",
        "log.message.timestamp.before.max.ms",
    ),
    "message.timestamp.type": ConfigDef(
        _TEXT,
        "CreateTime",
        _one_of("CreateTime", "LogAppendTime"),
        "Whose time a record carries.",
        "log.message.timestamp.type",
    ),
    "retention.bytes": ConfigDef(
        _LONG, "-1", _number(-1, _LONG_MAX), "Bytes kept of a partition.", "log.retention.bytes"
    ),
    "retention.ms": ConfigDef(
        _LONG, "604800000", _number(-1, _LONG_MAX), "How long records stay.", "log.retention.ms"
    ),
    # Accepted because clients send them; a partition here has no replicas and no files to apply
    # them to.
    "delete.retention.ms": ConfigDef(_LONG, "86400000", _number(0, _LONG_MAX), "No effect."),
    "file.delete.delay.ms": ConfigDef(_LONG, "60000", _number(0, _LONG_MAX), "No effect."),
    "flush.messages": ConfigDef(_LONG, str(_LONG_MAX), _number(1, _LONG_MAX), "No effect."),
    "flush.ms": ConfigDef(_LONG, str(_LONG_MAX), _number(0, _LONG_MAX), "No effect."),
    "follower.replication.throttled.replicas": ConfigDef(
        ConfigType.LIST, "", _anything, "No effect."
    ),
    "index.interval.bytes": ConfigDef(_INT, "4096", _number(0, _INT_MAX), "No effect."),
    "leader.replication.throttled.replicas": ConfigDef(
        ConfigType.LIST, "", _anything, "No effect."
    ),
    "max.compaction.lag.ms": ConfigDef(_LONG, str(_LONG_MAX), _number(1, _LONG_MAX), "No effect."),
    "min.cleanable.dirty.ratio": ConfigDef(ConfigType.DOUBLE, "0.5", _fraction, "No effect."),
    "min.compaction.lag.ms": ConfigDef(_LONG, "0", _number(0, _LONG_MAX), "No effect."),
    "min.insync.replicas": ConfigDef(_INT, "1", _number(1, _INT_MAX), "No effect."),
    "preallocate": ConfigDef(_BOOL, "false", _true_or_false, "No effect."),
    "segment.bytes": ConfigDef(_INT, "1073741824", _number(14, _INT_MAX), "No effect."),
    "segment.index.bytes": ConfigDef(_INT, "10485760", _number(4, _INT_MAX), "No effect."),
    "segment.jitter.ms": ConfigDef(_LONG, "0", _number(0, _LONG_MAX), "No effect."),
    "segment.ms": ConfigDef(_LONG, "604800000", _number(1, _LONG_MAX), "No effect."),
    "unclean.leader.election.enable": ConfigDef(_BOOL, "false", _true_or_false, "No effect."),
}
"""What a topic may have. Source: upstream's TopicConfig."""

BROKER_CONFIGS: Final[dict[str, ConfigDef]] = {
    definition.broker_name: definition
    for definition in TOPIC_CONFIGS.values()
    if definition.broker_name is not None
} | {
    "producer.id.expiration.ms": ConfigDef(
        _INT,
        "86400000",
        _number(1, 7 * 24 * 3_600_000),
        "How long a silent producer is remembered.",
    ),
}
"""What may be set for all brokers, or for one, while they run."""


def check_config(name: str, value: str | None, known: dict[str, ConfigDef]) -> str:
    """The value, if the setting may have it. Raises RefusedError (INVALID_CONFIG)."""
    definition = known.get(name)
    if definition is None:
        raise RefusedError(ErrorCode.INVALID_CONFIG, f"Unknown setting {name[:MAX_NAME_LENGTH]!r}.")
    if value is None:
        raise RefusedError(ErrorCode.INVALID_CONFIG, f"{name} has no value.")
    if len(value.encode()) > MAX_VALUE_BYTES:
        raise RefusedError(
            ErrorCode.INVALID_CONFIG, f"{name} is longer than {MAX_VALUE_BYTES} bytes."
        )
    wrong = definition.check(value)
    if wrong is not None:
        raise RefusedError(ErrorCode.INVALID_CONFIG, f"{name}={value[:80]} {wrong}.")
    return value
