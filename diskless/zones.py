"""Counts record bytes by whether their client is in this broker's zone.

A zone is a rack: the broker's is `broker.rack`, a client's is in its Fetch (`client.rack`) or in
its client id (`diskless.placement`). Bytes between zones cost money. Placement sends clients to
brokers of their own zone, so `other` rises only while a zone has no broker that is preferred.

Source: KIP-1150 (no data between zones but through the object store); docs/broker.md#zones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from diskless.placement import rack_hint

SAME: Final = "same"
OTHER: Final = "other"
UNKNOWN: Final = "unknown"  # the client names no rack, or the broker has none


class ZoneTraffic:
    """The record bytes of a broker, by direction and zone of the client."""

    def __init__(self, own_rack: Callable[[], str | None]) -> None:
        """Count nothing yet.

        Args:  own_rack: returns this broker's rack, or None without one.
        """
        self._own_rack = own_rack
        self.bytes_in = Counter[str]({SAME: 0, OTHER: 0, UNKNOWN: 0})  # of Produce requests
        self.bytes_out = Counter[str]({SAME: 0, OTHER: 0, UNKNOWN: 0})  # of batches

    def produced(self, client_id: str | None, size_bytes: int) -> None:
        """Count a Produce request."""
        self.bytes_in[self._zone(rack_hint(client_id))] += size_bytes

    def fetched(self, client_id: str | None, rack: str | None, size_bytes: int) -> None:
        """Count the batches of a Fetch response.

        Args:  rack: in the Fetch; without it the client id counts.
        """
        if size_bytes:
            self.bytes_out[self._zone(rack or rack_hint(client_id))] += size_bytes

    def _zone(self, rack: str | None) -> str:
        own = self._own_rack()
        if rack is None or own is None:
            return UNKNOWN
        return SAME if rack == own else OTHER
