"""Limits how many connections an address opens in a second.

    quotas = ConnectionQuotas(windows, now_ms)
    quotas.take(image.security.quotas)
    Listener(..., hold_ms=quotas.hold_ms)

A connection above the rate is held unread for as long as it is too early, a sample of the window at
most, and then closed. So a client that reconnects in a loop is slowed down, too.

Source: KIP-612; upstream's ConnectionQuotas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from coordinator.controller.quotas import CONNECTION_CREATION_RATE, IP, Entity, Quotas
from diskless.quotas.rates import Rate, Windows
from raft.net.identity import address_of, canonical_address

MAX_ADDRESSES: Final = 20_000
"""Addresses whose rates are kept; the oldest are dropped, idle ones first."""


class ConnectionQuotas:
    """The rates at which addresses connect to one broker."""

    def __init__(
        self,
        windows: Windows,
        now_ms: Callable[[], int],
        *,
        max_addresses: int = MAX_ADDRESSES,
    ) -> None:
        self.held = 0  # connections that were above a rate
        self._windows = windows
        self._now_ms = now_ms
        self._max_addresses = max_addresses
        self._limits: Mapping[str, float] = {}
        self._default: float | None = None
        self._rates: dict[str, Rate] = {}

    def __len__(self) -> int:
        """Return the number of rates."""
        return len(self._rates)

    def take(self, quotas: Quotas) -> None:
        """Use these quotas from now on."""
        limits: Mapping[Entity, float] = {
            entity: record.value
            for (entity, key), record in quotas.items()
            if key == CONNECTION_CREATION_RATE
        }
        self._default = limits.get(((IP, None),))
        self._limits = {
            canonical_address(name): limit
            for ((_, name),), limit in limits.items()
            if name is not None
        }
        if not limits:
            self._rates.clear()

    def hold_ms(self, peer: str) -> int:
        """Count a new connection; return how long to hold it before it is closed, 0 to serve it.

        Args:  peer: its address and port, as `host:port`.
        """
        if self._default is None and not self._limits:
            return 0
        address = address_of(peer)
        limit = self._limits.get(address, self._default)
        if limit is None:
            return 0
        now_ms = self._now_ms()
        rate = self._rates.get(address)
        if rate is None:
            if len(self._rates) >= self._max_addresses:
                self._drop(now_ms)
            rate = self._rates[address] = Rate(self._windows)
        rate.record(1, now_ms)
        hold_ms = min(self._windows.size_ms, rate.throttle_ms(limit, now_ms))
        if hold_ms:
            rate.record(-1, now_ms)
            self.held += 1
        return hold_ms

    def _drop(self, now_ms: int) -> None:
        idle = [address for address, rate in self._rates.items() if rate.is_idle(now_ms)]
        for address in idle or list(self._rates)[: max(1, self._max_addresses // 10)]:
            del self._rates[address]
