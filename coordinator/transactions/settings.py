"""The settings of the transaction log, and the limits that cannot be set.

Names are those of Kafka's properties, dots for underscores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

MAX_ID_BYTES: Final = 1024
"""Kafka has no bound of its own; an id is stored with every record of its transactions."""

MAX_PARTITIONS: Final = 10_000
"""Partitions of one transaction."""

RECORD_PARTITIONS: Final = 1_000
"""Partitions in one record: 0.3 MiB if every topic has one partition and the longest name."""

MAX_IDS: Final = 100_000
"""Transactional ids in the log, if the setting does not name another limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """Settings of the transaction log. Times in ms."""

    max_timeout_ms: int = 15 * 60_000  # transaction.max.timeout.ms
    id_expiration_ms: int = 7 * 24 * 3600 * 1000  # transactional.id.expiration.ms
    abort_interval_ms: int = 10_000  # transaction.abort.timed.out.transaction.cleanup.interval.ms
    expiry_interval_ms: int = 3600 * 1000  # transaction.remove.expired.transaction...
    max_ids: int = MAX_IDS  # esker.max.transactional.ids

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> TransactionSettings:
        """Build the settings from properties by name; missing properties have defaults."""
        known = {
            "max_timeout_ms": "transaction.max.timeout.ms",
            "id_expiration_ms": "transactional.id.expiration.ms",
            "abort_interval_ms": "transaction.abort.timed.out.transaction.cleanup.interval.ms",
            "expiry_interval_ms": ("transaction.remove.expired.transaction.cleanup.interval.ms"),
            "max_ids": "esker.max.transactional.ids",
        }
        return cls(**{name: values[key] for name, key in known.items() if key in values})
