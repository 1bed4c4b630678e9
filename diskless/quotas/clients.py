"""The rates of clients that have quotas, by the newest image.

    quotas = ClientQuotas(windows)
    quotas.take(image.security.quotas)
    client = quotas.of("ann", "app")     # None: this client has no quota

A rate belongs to those who share a quota, and outlives a change of the quota's value. Clients
choose their ids, so the number of rates is bounded: the oldest are dropped, idle ones first.

Source: upstream's ClientQuotaManager.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from coordinator.controller.quotas import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    Quotas,
    find_quota,
)
from diskless.quotas.rates import Rate, Windows

MAX_CLIENTS: Final = 10_000
"""Pairs of user and client id whose quotas are known; past that they are looked up anew."""

MAX_RATES: Final = 20_000
"""Rates that are kept, of about a kilobyte."""

DROPPED_SHARE: Final = 10  # one in so many rates makes place for new ones


class Bucket(NamedTuple):
    """A rate and its limit, both per second."""

    rate: Rate
    limit: float

    def take(self, value: float, now_ms: int) -> int:
        """Record a value, and return the time in ms that it must be waited for, or 0."""
        self.rate.record(value, now_ms)
        return self.rate.throttle_ms(self.limit, now_ms)


class LimitedClient(NamedTuple):
    """The quotas of one client; None: no limit."""

    produce: Bucket | None
    fetch: Bucket | None
    request: Bucket | None  # of percent of one processor
    mutates: bool = False  # the controller limits its mutations


class ClientQuotas:
    """Quotas and rates of all clients of one broker."""

    def __init__(
        self, windows: Windows, *, max_clients: int = MAX_CLIENTS, max_rates: int = MAX_RATES
    ) -> None:
        self.windows = windows
        self._max_clients = max_clients
        self._max_rates = max_rates
        self._quotas: Quotas = {}
        self._clients: dict[tuple[str, str], LimitedClient | None] = {}
        self._rates: dict[tuple[str, tuple[str, str]], Rate] = {}

    def __len__(self) -> int:
        """Return the number of rates."""
        return len(self._rates)

    def take(self, quotas: Quotas) -> None:
        """Use these quotas from now on."""
        self._quotas = quotas
        self._clients.clear()

    def of(self, user: str, client_id: str, now_ms: int) -> LimitedClient | None:
        """Return a client's quotas, or None if it has none."""
        key = (user, client_id)
        try:
            return self._clients[key]
        except KeyError:
            pass
        client = LimitedClient(
            self._bucket(PRODUCER_BYTE_RATE, user, client_id, now_ms),
            self._bucket(CONSUMER_BYTE_RATE, user, client_id, now_ms),
            self._bucket(REQUEST_PERCENTAGE, user, client_id, now_ms),
            find_quota(self._quotas, CONTROLLER_MUTATION_RATE, user, client_id) is not None,
        )
        found = client if any(client) else None
        if len(self._clients) >= self._max_clients:
            self._clients.clear()
        self._clients[key] = found
        return found

    def _bucket(self, key: str, user: str, client_id: str, now_ms: int) -> Bucket | None:
        quota = find_quota(self._quotas, key, user, client_id)
        if quota is None:
            return None
        where = (key, quota.shared_by)
        rate = self._rates.get(where)
        if rate is None:
            if len(self._rates) >= self._max_rates:
                self._drop(now_ms)
            rate = self._rates[where] = Rate(self.windows)
        return Bucket(rate, quota.limit)

    def _drop(self, now_ms: int) -> None:
        """Drop idle rates, and the oldest if few are idle; clients that had one get a new one."""
        for where in [where for where, rate in self._rates.items() if rate.is_idle(now_ms)]:
            del self._rates[where]
        most = self._max_rates - max(1, self._max_rates // DROPPED_SHARE)
        for where in list(self._rates)[: max(0, len(self._rates) - most)]:
            del self._rates[where]
        self._clients.clear()
