"""Assigns work to brokers without a table: rendezvous hashing.

Each broker has a score for a name, and the highest wins. All nodes that know the same brokers
choose the same; when a broker joins or leaves, only the names that it wins or had won move.

Source: docs/design/groups.md, docs/design/broker.md#any-broker-leads.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b


def score(name: bytes, broker_id: int) -> bytes:
    """Return a broker's rendezvous hash score for a name; `choose` picks the highest score."""
    return blake2b(name + broker_id.to_bytes(4, "big"), digest_size=8).digest()


def choose(name: bytes, broker_ids: Iterable[int]) -> int | None:
    """Return the id of the broker with the highest score for a name, or None if there is none.

    >>> choose(b"orders", [1, 2, 3]) == choose(b"orders", [3, 1, 2])
    True
    """
    return max(broker_ids, key=lambda broker_id: (score(name, broker_id), broker_id), default=None)


def group_broker(group_id: str, broker_ids: Iterable[int]) -> int | None:
    """Choose a consumer group's coordinator from the ids of the unfenced brokers."""
    return choose(group_id.encode(), broker_ids)


def transaction_broker(transactional_id: str, broker_ids: Iterable[int]) -> int | None:
    """Choose a transactional id's coordinator from the ids of the unfenced brokers."""
    return choose(b"transaction " + transactional_id.encode(), broker_ids)
