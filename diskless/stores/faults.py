"""Wraps a store and injects the faults of real object stores, for tests and experiments.

Rules decide what fails: each names the operations, the probability and the fault. The worst fault
is `LOST_ANSWER`: the operation is done and its answer never arrives, so that the caller must treat
a completed operation as unknown.

Randomness and delays come from outside: a simulation provides its own.

Source: docs/design/broker.md#object-stores; the incident classes of object stores: 503 SlowDown,
slow first byte, time-outs after success.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random

from diskless.stores.interface import (
    ByteRange,
    DeletionError,
    ObjectStorage,
    StorageError,
    StoredObject,
)
from records.compression import Buffer


class Fault(Enum):
    """A fault of one operation."""

    ERROR = "error"  # not done: a server's error, which may pass
    THROTTLED = "throttled"  # not done: 503 SlowDown
    REFUSED = "refused"  # not done, and will not be: access denied
    LOST_ANSWER = "lost answer"  # done, but the caller gets a timeout
    SLOW = "slow"  # done, after a delay
    HALF = "half"  # of a deletion: every second object is not deleted
    DAMAGED = "damaged"  # of a fetch: one byte of the answer is another


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRule:
    """A fault, and the operations and probability with which it strikes."""

    fault: Fault
    operations: frozenset[str] = frozenset({"upload", "fetch", "delete", "list"})
    probability: float = 1.0
    delay_s: float = 0.0  # before the operation, for SLOW; before the error, for others


class FaultyStore:
    """A store with faults by `rules`, which may be replaced at any time."""

    def __init__(
        self,
        store: ObjectStorage,
        random: Random,
        sleep: Callable[[float], Awaitable[object]],
        rules: Sequence[FaultRule] = (),
    ) -> None:
        self.rules = tuple(rules)
        self.struck: dict[tuple[str, Fault], int] = {}  # how often, by operation
        self._store = store
        self._random = random
        self._sleep = sleep

    async def upload(self, key: str, parts: Sequence[Buffer], size_bytes: int) -> None:
        fault = await self._before("upload", key)
        await self._store.upload(key, parts, size_bytes)
        self._after(fault, key)

    async def fetch(self, key: str, byte_range: ByteRange) -> Buffer:
        fault = await self._before("fetch", key)
        data = await self._store.fetch(key, byte_range)
        self._after(fault, key)
        if fault is Fault.DAMAGED and len(data):
            spoiled = bytearray(data)
            spoiled[self._random.randrange(len(spoiled))] ^= 1 << self._random.randrange(8)
            return spoiled
        return data

    async def delete(self, keys: Collection[str]) -> None:
        fault = await self._before("delete", next(iter(keys), ""))
        if fault is Fault.HALF:
            await self._delete_half(list(keys))
            return
        await self._store.delete(keys)
        self._after(fault, next(iter(keys), ""))

    async def _delete_half(self, keys: list[str]) -> None:
        await self._store.delete(keys[1::2])
        raise DeletionError(dict.fromkeys(keys[::2], "SlowDown: reduce your request rate"))

    async def list_objects(self, prefix: str) -> AsyncIterator[StoredObject]:
        fault = await self._before("list", prefix)
        shown = 0
        async for entry in self._store.list_objects(prefix):
            if fault is Fault.HALF and shown >= 1:
                raise StorageError(prefix, "the listing broke off")
            yield entry
            shown += 1
        self._after(fault, prefix)

    async def close(self) -> None:
        await self._store.close()

    async def _before(self, operation: str, key: str) -> Fault | None:
        """Choose a random fault for an operation; raise an error if the operation must fail."""
        for rule in self.rules:
            if operation not in rule.operations or self._random.random() >= rule.probability:
                continue
            struck = (operation, rule.fault)
            self.struck[struck] = self.struck.get(struck, 0) + 1
            if rule.delay_s:
                await self._sleep(rule.delay_s)
            match rule.fault:
                case Fault.ERROR:
                    raise StorageError(key, "500 InternalError")
                case Fault.THROTTLED:
                    raise StorageError(key, "503 SlowDown")
                case Fault.REFUSED:
                    raise StorageError(key, "403 AccessDenied", retriable=False)
            return rule.fault
        return None

    @staticmethod
    def _after(fault: Fault | None, key: str) -> None:
        if fault is Fault.LOST_ANSWER:
            raise StorageError(key, "timed out")
