"""A batch coordinator's settings, and its fixed bounds.

Source: docs/design/state-machines.md#bounded-work; the names are those of the properties, dots for
underscores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from records.object_keys import ObjectKeys

MAX_BATCHES: Final = 10_000
"""Batches of one object: what one decision and one record may cost.

Source: docs/design/state-machines.md#bounded-work.
"""

MAX_RECORD_BYTES: Final = 1024 * 1024
"""Size of one object's commit record (docs/design/state-machines.md#bounded-work)."""

MAX_OBJECT_BYTES: Final = 5 * 1024**4
"""Size of one object; S3's own limit. A million of them still add up to less than 2^63."""

KEPT_BATCHES: Final = 5
"""Batches remembered of each producer and partition. Kafka's ProducerStateEntry has the same."""

KEPT_ANSWERS: Final = 64
"""Objects of one broker epoch whose answers are kept: more than a broker has in flight."""

MAX_LEASE_IDS: Final = 10_000
"""Object ids of one lease."""

MAX_PARTITIONS: Final = 100_000
"""Partitions of one topic."""

MAX_RETENTION_ROWS: Final = 1_000
"""Rows of a plan in one request: runs are looked up for each, and others wait meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """The limits and delays of a batch coordinator. Times in ms."""

    keys: ObjectKeys
    file_delete_delay_ms: int = 60_000  # diskless.file.delete.delay.ms
    lease_timeout_ms: int = 15 * 60_000  # of an open lease; longer than the longest upload
    answer_retention_ms: int = 10 * 60_000  # kept answers live at least so long past their lease
    producer_expiration_ms: int = 24 * 3600 * 1000  # producer.id.expiration.ms
    retention_check_interval_ms: int = 0  # log.retention.check.interval.ms
    max_producers: int = 1_000_000  # esker.max.producers
    tombstone_retention_ms: int = 24 * 3600 * 1000  # longer than any call is under way
    maintenance_limit: int = (
        2_000  # runs, objects, producers or ids that one sweep record may touch
    )
    find_limit: int = 10_000  # runs in one answer to FindBatches
