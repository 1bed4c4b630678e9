"""Sends producers on to the brokers that came back after them.

Clients ask for Metadata again when a request fails, or after some minutes. So after a broker was
restarted its producers stay where they went meanwhile, and after a restart of all brokers, one
after the other, the last one has next to none. The broker that they went to knows better: it sees
that a broker has come that leads some of their partitions. It answers NOT_LEADER_OR_FOLLOWER to
these, once for each connection and change, for a moment. The client asks for Metadata and goes. So
does Kafka's preferred leader election to clients.

Only connections that were here before the change are sent on. Any broker takes any batch, and a
client that does not go is served again after the moment.

Why a moment, and not one request: a producer has several requests under way, and if one of them
were refused and the next accepted, records without a sequence would change their order.

Source: docs/design/health.md#clients-spread-after-restarts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from coordinator.controller.chunk_placement import active_replicas
from coordinator.controller.image import MetadataImage
from coordinator.controller.placement import (
    PlacedBroker,
    place,
    placement_scope,
    preferred_brokers,
    unfenced_brokers,
)
from diskless.placement import rack_hint

SETTLES_S: Final = 3.0  # after a change, so that every broker's Metadata shows it
REFUSES_S: Final = 2.0  # a connection's partitions that are placed elsewhere


@dataclass(slots=True)
class _Producer:
    """A connection that produces."""

    since_s: float  # of its first Produce
    sent_on: int = 0  # the number of the change for which it was sent on
    refused_until_s: float = 0.0


class Destination:
    """The brokers to which one connection's batches should go now."""

    def __init__(self, spreading: ProducerSpreading, producer: _Producer, rack: str | None) -> None:
        self._spreading = spreading
        self._producer = producer
        self._rack = rack

    def broker_elsewhere(self, topic_id: UUID, partition: int) -> int | None:
        """Return the other broker for a partition's batches, or None for this broker."""
        return self._spreading.send_on(self._producer, self._rack, topic_id, partition)


class ProducerSpreading:
    """The producers of one broker. Belongs to the event loop."""

    def __init__(self, broker_id: int, *, clock: Callable[[], float]) -> None:
        """Create the spreading of producers over brokers; `clock` gives the time in seconds."""
        self._broker_id = broker_id
        self._clock = clock
        self._producers: dict[object, _Producer] = {}  # by connection
        self._image = MetadataImage()
        self._placed: Sequence[PlacedBroker] | None = None  # brokers that lead partitions
        self._change = 0
        self._changed_at_s = 0.0

    def on_image(self, image: MetadataImage) -> None:
        """Record each change of placement that should move producers to other brokers."""
        placed = preferred_brokers(unfenced_brokers(image))
        if self._placed is not None:
            before, now = _ids(self._placed), _ids(placed)
            if now - before or self._broker_id in before - now:
                self._change += 1
                self._changed_at_s = self._clock()
        self._placed, self._image = placed, image

    def destination(self, connection: object, client_id: str | None) -> Destination | None:
        """Return the brokers that should get a connection's batches, or None for this broker."""
        now_s = self._clock()
        producer = self._producers.get(connection)
        if producer is None:
            producer = self._producers[connection] = _Producer(now_s)
        if not self._must_go(producer, now_s):
            return None
        return Destination(self, producer, rack_hint(client_id))

    def forget(self, connection: object) -> None:
        """Drop the state of the producer on a connection that was closed."""
        self._producers.pop(connection, None)

    def _must_go(self, producer: _Producer, now_s: float) -> bool:
        if producer.sent_on == self._change:
            return now_s < producer.refused_until_s
        return producer.since_s < self._changed_at_s <= now_s - SETTLES_S

    def send_on(
        self, producer: _Producer, rack: str | None, topic_id: UUID, partition: int
    ) -> int | None:
        """Return the broker, other than this one, that should get a partition's batches.

        After the first such answer, the producer's batches are refused for `REFUSES_S` seconds.

        Returns:  None if this broker leads the partition, or the connection may stay.
        """
        now_s = self._clock()
        record = self._image.partition(topic_id, partition)
        assigned = () if record is None else active_replicas(record)
        scope = placement_scope(self._placed or (), rack)
        there = place(topic_id, partition, scope, assigned).leader_id
        if there is None or there == self._broker_id or not self._must_go(producer, now_s):
            return None
        if producer.sent_on != self._change:
            producer.sent_on = self._change
            producer.refused_until_s = now_s + REFUSES_S
        return there


def _ids(brokers: Sequence[PlacedBroker]) -> set[int]:
    return {broker.broker_id for broker in brokers}
