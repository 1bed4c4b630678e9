"""Reads the rack that a client names, and redirects consumers to brokers of their own rack.

The choice of a leader is `coordinator.controller.placement`.

The trap: no version of Metadata carries `client.rack`, so clients state their rack in their client
id: `client.id=app,diskless_az=eu-1a` (or `esker_rack=eu-1a`). Fetch does carry a rack, and its
answer names a preferred read replica, as in Kafka.

Source: docs/design/broker.md#any-broker-leads; KIP-392 (preferred read replica).
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Final
from uuid import UUID

from coordinator.controller.placement import PlacedBroker, is_known, leader

REDIRECT_PAUSE_S: Final = 60.0
"""A client is redirected at most once per partition in this time: it may be right to stay."""

MAX_REMEMBERED: Final = 100_000

_HINT: Final = re.compile(r"(?:^|[,;])\s*(?:diskless_az|esker_rack)=([^,;]*)")


SHORT_ID: Final = 256
"""Characters of a client id whose rack is remembered; a stranger may send ids of 32 KiB."""


def rack_hint(client_id: str | None) -> str | None:
    """Return the rack that a client id names, or None if the client id names no rack.

    >>> rack_hint("orders,diskless_az=eu-1a"), rack_hint("esker_rack=eu-1b"), rack_hint("orders")
    ('eu-1a', 'eu-1b', None)
    """
    if not client_id or len(client_id) > SHORT_ID:
        return _find_hint(client_id or "")
    return _remembered_hint(client_id)


def _find_hint(client_id: str) -> str | None:
    match = _HINT.search(client_id)
    return (match[1].strip() or None) if match else None


_remembered_hint: Final = lru_cache(maxsize=1_000)(_find_hint)
"""Asked for every Produce and Fetch, mostly of the same few clients."""


class Redirects:
    """Remembers recent redirects, so that a consumer in another rack is redirected only rarely."""

    def __init__(self) -> None:
        self._sent: dict[tuple[Hashable, ...], float] = {}  # the longest ago first

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
        return there if self.may_send((client, topic_id, partition), now_s) else None

    def may_send(self, key: tuple[Hashable, ...], now_s: float) -> bool:
        """Return whether a client may be redirected now, and remember it if so.

        Args:    key: names the client, and from what it is redirected.
                 now_s: the time of any clock that does not go backwards.
        """
        last = self._sent.pop(key, None)
        if last is not None and now_s - last < REDIRECT_PAUSE_S:
            self._sent[key] = last
            return False
        self._sent[key] = now_s
        if len(self._sent) > MAX_REMEMBERED:
            del self._sent[next(iter(self._sent))]
        return True
