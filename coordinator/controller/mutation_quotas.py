"""Limits how many partitions a client may have created and deleted in a second.

    quotas = MutationQuotas(windows, image=lambda: machine.image, monotonic_ms=...)
    charge = quotas.charge_of(api_key, client)                  # None: no quota
    charge.take(5)                                              # raises RefusedError

A bucket of tokens fills at the rate of the quota, up to what its window allows. A *strict* charge
refuses while the bucket is overdrawn; a permissive one, for clients that do not know the error,
only says how long to wait. Both may overdraw it once: a topic has as many partitions as it has.

The buckets are those of the node that decides. They are not in the log: a new controller begins
with full ones.

The trap: a decision may be made again, after a proposal that was refused. What it took is given
back before.

Source: KIP-599; upstream's ControllerMutationQuotaManager and TokenBucket.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from coordinator.controller.access import Client
from coordinator.controller.errors import RefusedError
from coordinator.controller.image import MetadataImage
from coordinator.controller.quotas import CONTROLLER_MUTATION_RATE, find_quota
from records.kafka_errors import ErrorCode

EXCEEDED: Final = "The throttling quota has been exceeded."
MAX_BUCKETS: Final = 20_000
MAX_THROTTLE_MS: Final = 2**31 - 1

STRICT_SINCE: Final = {19: 6, 20: 5, 37: 3}
"""The first versions whose clients know the error: CreateTopics, DeleteTopics, CreatePartitions."""


class MutationWindow(NamedTuple):
    """The window of controller mutations, which bounds how much may be saved up."""

    samples: int = 11  # controller.quota.window.num
    size_s: int = 1  # controller.quota.window.size.seconds


class _Bucket:
    """Tokens that fill at a rate. Source: upstream's TokenBucket."""

    __slots__ = ("filled_ms", "tokens")

    def __init__(self) -> None:
        self.tokens = 0.0
        self.filled_ms: int | None = None  # None: it is full

    def fill(self, rate: float, burst: float, now_ms: int) -> None:
        if self.filled_ms is None:
            self.tokens = burst
        else:
            self.tokens = min(burst, self.tokens + rate * (now_ms - self.filled_ms) / 1_000)
        self.filled_ms = now_ms


class Charge:
    """What one request takes of its client's quota."""

    def __init__(
        self,
        bucket: _Bucket,
        rate: float,
        burst: float,
        monotonic_ms: Callable[[], int],
        *,
        is_strict: bool,
    ) -> None:
        self._bucket = bucket
        self._rate = rate
        self._burst = burst
        self._monotonic_ms = monotonic_ms
        self._is_strict = is_strict
        self.taken = 0
        self._ends_ms: float | None = None  # when the bucket is not overdrawn any more

    def give_back(self, mutations: int) -> None:
        """Give back what a decision has taken, because it is made again."""
        self._bucket.tokens += mutations
        self.taken -= mutations

    def take(self, mutations: int) -> None:
        """Take tokens for so many partitions.

        Raises:  RefusedError, THROTTLING_QUOTA_EXCEEDED, if the charge is strict and the bucket is
                 overdrawn.
        """
        now_ms, bucket = self._monotonic_ms(), self._bucket
        bucket.fill(self._rate, self._burst, now_ms)
        if self._is_strict and bucket.tokens < 0:
            self._note(now_ms)
            raise RefusedError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, EXCEEDED)
        bucket.tokens -= mutations
        self.taken += mutations
        if not self._is_strict and bucket.tokens < 0:
            self._note(now_ms)

    def _note(self, now_ms: int) -> None:
        self._ends_ms = now_ms + -self._bucket.tokens / self._rate * 1_000

    def throttle_ms(self) -> int:
        """Return how long the client is to wait, 0 if it was not throttled."""
        if self._ends_ms is None:
            return 0
        return round(min(max(0.0, self._ends_ms - self._monotonic_ms()), MAX_THROTTLE_MS))


class MutationQuotas:
    """The quotas of controller mutations, by the newest image."""

    def __init__(
        self,
        window: MutationWindow,
        *,
        image: Callable[[], MetadataImage],
        monotonic_ms: Callable[[], int],
    ) -> None:
        self._window = window
        self._image = image
        self._monotonic_ms = monotonic_ms
        self._buckets: dict[tuple[str, str], _Bucket] = {}

    def charge_of(self, api_key: int, client: Client) -> Charge | None:
        """Return the charge of a client's request, or None if no quota holds for it."""
        strict_since = STRICT_SINCE.get(api_key)
        if strict_since is None:
            return None
        quotas, user = self._image().security.quotas, client.principal.name
        quota = find_quota(quotas, CONTROLLER_MUTATION_RATE, user, client.client_id)
        if quota is None:
            return None
        bucket = self._buckets.get(quota.shared_by)
        if bucket is None:
            if len(self._buckets) >= MAX_BUCKETS:
                for where in list(self._buckets)[: MAX_BUCKETS // 10]:
                    del self._buckets[where]
            bucket = self._buckets[quota.shared_by] = _Bucket()
        burst = quota.limit * self._window.samples * self._window.size_s
        is_strict = client.version is None or client.version >= strict_since
        return Charge(bucket, quota.limit, burst, self._monotonic_ms, is_strict=is_strict)
