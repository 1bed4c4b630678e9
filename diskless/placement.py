"""Chooses the leader of a partition for a client: a pure function, the same on every broker.

Any broker can take any batch and serve any offset. Still, Kafka's protocol wants a leader for each
partition, and the choice matters: in the client's own rack, because bytes between racks cost money,
and always the same broker, because a broker that has read an object has it in its cache.

Rendezvous hashing gives that without a stored table: each broker has a score for a partition, and
the highest wins. When a broker joins or leaves, only the partitions that it wins or had won move.

The trap: no version of Metadata carries `client.rack`, so clients state their rack in their client
id: `client.id=app,diskless_az=eu-1a` (or `esker_rack=`). Fetch does carry a rack, and its answer
names a preferred read replica, as in Kafka.

A broker that is not preferred is placed nowhere (docs/design/health.md#not-preferred).

Source: docs/design/broker.md#any-broker-leads; KIP-392 (preferred read replica).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from coordinator.controller.image import MetadataImage
from coordinator.controller.preference import is_preferred, serving_brokers
from coordinator.rendezvous import score

REDIRECT_PAUSE_S: Final = 60.0
"""A client is redirected at most once per partition in this time: it may be right to stay."""

MAX_REMEMBERED: Final = 100_000

_HINT: Final = re.compile(r"(?:^|[,;])\s*(?:diskless_az|esker_rack)=([^,;]*)")


class PlacedBroker(NamedTuple):
    """An unfenced broker."""

    broker_id: int
    rack: str | None
    is_preferred: bool = True


def unfenced_brokers(image: MetadataImage) -> list[PlacedBroker]:
    """Return the unfenced brokers, by rising id."""
    return [
        PlacedBroker(broker_id, broker.rack, is_preferred(broker))
        for broker_id, broker in serving_brokers(image).items()
    ]


def preferred_brokers(brokers: Sequence[PlacedBroker]) -> Sequence[PlacedBroker]:
    """Return the preferred brokers, on which partitions are placed, or all if none is preferred."""
    return [broker for broker in brokers if broker.is_preferred] or brokers


def rack_hint(client_id: str | None) -> str | None:
    """Return the rack that a client id names, or None.

    >>> rack_hint("orders,diskless_az=eu-1a"), rack_hint("esker_rack=eu-1b"), rack_hint("orders")
    ('eu-1a', 'eu-1b', None)
    """
    match = _HINT.search(client_id or "")
    return (match[1].strip() or None) if match else None


def is_known(rack: str | None, brokers: Iterable[PlacedBroker]) -> bool:
    """Return whether any broker is in this rack; True if no rack is given.

    An unknown rack is usually misspelt.
    """
    return rack is None or any(broker.rack == rack for broker in brokers)


def leader(
    topic_id: UUID, partition: int, rack: str | None, brokers: Sequence[PlacedBroker]
) -> int | None:
    """Return the broker that leads a partition for a client in `rack`, or None without brokers.

    Brokers in the client's rack are preferred; in an unknown rack, or without any, all count.

    >>> leader(UUID(int=1), 0, "b", [PlacedBroker(1, "a"), PlacedBroker(2, "b")])
    2
    """
    near = [broker for broker in brokers if broker.rack == rack] if rack is not None else []
    best = max(
        near or brokers,
        key=lambda broker: (_score(topic_id, partition, broker.broker_id), broker.broker_id),
        default=None,
    )
    return None if best is None else best.broker_id


def leaders(
    topic_id: UUID, partition: int, brokers: Iterable[PlacedBroker]
) -> tuple[int | None, dict[str | None, int]]:
    """Return the leader for clients without a known rack, and the leader for each rack.

    Computes each broker's score once; that is the cost of the call.
    """
    ranked = sorted(
        (
            (_score(topic_id, partition, broker.broker_id), broker.broker_id, broker.rack)
            for broker in brokers
        ),
        key=lambda scored: scored[:2],
    )
    best = ranked[-1][1] if ranked else None
    return best, {rack: broker_id for _, broker_id, rack in ranked}  # the last of a rack stays


def _score(topic_id: UUID, partition: int, broker_id: int) -> bytes:
    return score(topic_id.bytes + partition.to_bytes(4, "big"), broker_id)


class Redirects:
    """Remembers recent redirects, so that a consumer in another rack is redirected only rarely."""

    def __init__(self) -> None:
        self._sent: dict[tuple[str, UUID, int], float] = {}  # the longest ago first

    def preferred_broker(
        self,
        client: str,
        topic_id: UUID,
        partition: int,
        rack: str | None,
        here: PlacedBroker,
        brokers: Sequence[PlacedBroker],
        now_s: float,
    ) -> int | None:
        """Return the broker to read from in the client's rack, or None for this broker, `here`.

        `here` is this broker.

        Args:    client: any string that tells clients apart.
                 rack: the rack in its Fetch.
                 now_s: the time of any clock that does not go backwards.
        """
        if rack is None or here.rack == rack or not is_known(rack, brokers):
            return None
        near = [broker for broker in brokers if broker.is_preferred and broker.rack == rack]
        there = leader(topic_id, partition, rack, near)
        if there is None or there == here.broker_id:
            return None
        key = (client, topic_id, partition)
        last = self._sent.pop(key, None)
        if last is not None and now_s - last < REDIRECT_PAUSE_S:
            self._sent[key] = last
            return None
        self._sent[key] = now_s
        if len(self._sent) > MAX_REMEMBERED:
            del self._sent[next(iter(self._sent))]
        return there
