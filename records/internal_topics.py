"""The names of the quorum's own topics, each of which is one or more replicated logs.

Source: KIP-595 (`__cluster_metadata`), KIP-1164 (`__diskless-metadata`), upstream's Topic
(`__consumer_offsets`, `__transaction_state`).
"""

from __future__ import annotations

from typing import Final

CLUSTER_METADATA: Final = "__cluster_metadata"
"""Brokers, topics, settings; its partition 0 names all other logs."""

DISKLESS_METADATA: Final = "__diskless-metadata"
"""Batch coordinates: one batch coordinator for each partition."""

CONSUMER_OFFSETS: Final = "__consumer_offsets"
"""Consumer groups and their committed offsets."""

TRANSACTION_STATE: Final = "__transaction_state"
"""Transactional ids and their transactions."""

BENCH_LOG: Final = "esker-bench-log"
"""A log for benchmarks, to which ordinary clients may produce where that is enabled."""

INTERNAL_TOPICS: Final = frozenset(
    {CLUSTER_METADATA, DISKLESS_METADATA, CONSUMER_OFFSETS, TRANSACTION_STATE, BENCH_LOG}
)
"""Clients may neither write to these topics, nor add partitions at will, nor delete them."""
