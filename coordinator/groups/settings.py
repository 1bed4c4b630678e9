"""The settings of groups, and the limits that cannot be set.

Names are those of Kafka's properties, dots for underscores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

MAX_GROUP_ID_BYTES: Final = 1024
"""Kafka has no bound of its own; an id is stored with every record of its group."""

MAX_INSTANCE_ID_BYTES: Final = 249
"""The limit of a topic's name, which Kafka's clients apply to instance ids too."""

MAX_CLIENT_ID_BYTES: Final = 1024
"""A longer client id is truncated."""

MAX_GENERATION_BYTES: Final = 1024 * 1024
"""Size of one generation's members: the limit of one record, and of one response."""

MAX_OFFERED_BYTES: Final = 4 * MAX_GENERATION_BYTES
"""Size of all protocols that a group's members offer, of which one is stored."""

MAX_OFFSETS: Final = 10_000
"""Offsets in one commit; the same limit as batches in one object."""

MAX_COMMIT_BYTES: Final = 1024 * 1024
"""Size of one commit's offsets. Kafka's limit is the offsets topic's max.message.bytes."""

MAX_PROTOCOLS: Final = 100
"""Protocols that one member offers; clients offer two or three."""

MAX_PARKED: Final = 10_000
"""Requests that wait for one group; further ones are refused with a retriable code."""

MAX_BACKOFF_MS: Final = 1_000
"""The longest pause before a request to the log is repeated."""

MAX_FETCH_BYTES: Final = 1024 * 1024
"""Size of one request for offsets to the log: names and partitions."""

MAX_GENERATION: Final = 2**31 - 1
"""The last generation of a group that the protocol can carry; after it comes 1 again."""

MAX_GROUPS: Final = 100_000
"""Groups in the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """Settings of the group log. Times in ms."""

    offsets_retention_ms: int = 7 * 24 * 3600 * 1000  # offsets.retention.minutes
    retention_check_interval_ms: int = 10 * 60 * 1000  # offsets.retention.check.interval.ms
    ownership_grace_ms: int = 3600 * 1000  # a new owner's members may not be in the log yet
    offset_metadata_max_bytes: int = 4096  # offset.metadata.max.bytes
    max_groups: int = MAX_GROUPS  # esker.max.groups
    producer_expiration_ms: int = 24 * 3600 * 1000  # producer.id.expiration.ms

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> LogSettings:
        """Build the settings from properties by name; missing properties have defaults."""
        known = {
            "retention_check_interval_ms": "offsets.retention.check.interval.ms",
            "offset_metadata_max_bytes": "offset.metadata.max.bytes",
            "max_groups": "esker.max.groups",
            "producer_expiration_ms": "producer.id.expiration.ms",
        }
        given = {name: values[key] for name, key in known.items() if key in values}
        minutes = values.get("offsets.retention.minutes")
        if minutes is not None:
            given["offsets_retention_ms"] = minutes * 60_000
        return cls(**given)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Settings of a broker's group coordinator. Times in ms."""

    min_session_timeout_ms: int = 6_000  # group.min.session.timeout.ms
    max_session_timeout_ms: int = 1_800_000  # group.max.session.timeout.ms
    initial_rebalance_delay_ms: int = 3_000  # group.initial.rebalance.delay.ms
    max_size: int = 1_000  # group.max.size; unlimited by default in Kafka
    offset_metadata_max_bytes: int = 4096  # offset.metadata.max.bytes
    new_member_join_timeout_ms: int = 300_000  # for a first JoinGroup; as in Kafka
    answer_timeout_ms: int = 5_000  # offsets.commit.timeout.ms: for the log to answer
    retry_backoff_ms: int = 50  # before a request to the log is repeated; doubled up to a second
    idle_ms: int = 10 * 60 * 1000  # after which the broker forgets an unused empty group
    adopt_delay_ms: int = 2_000  # after brokers changed: most groups have had a request by then
    adopt_interval_ms: int = 30_000  # between two scans for members without a broker
    adopt_pause_ms: int = 20  # between the slices of one scan

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> GroupSettings:
        """Build the settings from properties by name; missing properties have defaults.

        Raises:  ValueError if they contradict each other.
        """
        known = {
            "min_session_timeout_ms": "group.min.session.timeout.ms",
            "max_session_timeout_ms": "group.max.session.timeout.ms",
            "initial_rebalance_delay_ms": "group.initial.rebalance.delay.ms",
            "max_size": "group.max.size",
            "offset_metadata_max_bytes": "offset.metadata.max.bytes",
            "answer_timeout_ms": "offsets.commit.timeout.ms",
        }
        found = cls(**{name: values[key] for name, key in known.items() if key in values})
        if found.min_session_timeout_ms > found.max_session_timeout_ms:
            raise ValueError(
                f"is {found.max_session_timeout_ms}, below group.min.session.timeout.ms, "
                f"which is {found.min_session_timeout_ms}"
            )
        return found
