"""The limit on raising this node's epoch before the node that a request names confirms it.

Requests are not authenticated, and an epoch never goes back: a stranger who names one near 2^31
would use up the range for good. So requests move the epoch by `BUDGET` at most, refilled by one a
second. An epoch beyond that becomes a *claim*; the core then asks the claimed node itself, at its
configured endpoint, and believes the answer.

The trap: a limit on the distance of each request is none. 2,047 requests of +2^20 reach the end.

Source: docs/design/epochs.md.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from records.types import Epoch, NodeId

MAX_EPOCH: Final = Epoch(2**31 - 1)
"""The wire and the disk carry epochs as int32."""

BUDGET: Final = 1_000
"""Epochs; a healthy quorum spends one for each election."""

REFILL_MS: Final = 1_000  # for one epoch
CLAIM_MS: Final = 10_000
"""A claim that is not repeated for so long is forgotten; an honest candidate repeats it at once."""


class Claim(NamedTuple):
    """An epoch that a request named, and when it is forgotten."""

    epoch: Epoch
    expires_ms: int


class EpochBudget:
    """The epochs that requests may still spend, and one unconfirmed report for each node.

    Callers check that the named node is a voter, which bounds the claims.

    >>> budget = EpochBudget()
    >>> budget.spend(900, now_ms=0), budget.spend(900, now_ms=0), budget.spend(900, now_ms=800_000)
    (True, False, True)
    >>> budget.claim(NodeId(2), Epoch(1900), now_ms=0)
    True
    >>> budget.unconfirmed(Epoch(900), now_ms=0), budget.unconfirmed(Epoch(1900), now_ms=0)
    ((2,), ())
    """

    __slots__ = ("_claims", "_credit_ms", "_refilled_ms")

    def __init__(self) -> None:
        self._credit_ms = BUDGET * REFILL_MS
        self._refilled_ms = 0
        self._claims: dict[NodeId, Claim] = {}

    def spend(self, distance: int, now_ms: int) -> bool:
        """Return whether `distance` epochs are left in the budget, and if so, subtract them.

        Args:    now_ms: any clock that does not go backwards.
        """
        refilled_ms = self._credit_ms + now_ms - self._refilled_ms
        self._credit_ms = min(refilled_ms, BUDGET * REFILL_MS)
        self._refilled_ms = now_ms
        if distance * REFILL_MS > self._credit_ms:
            return False
        self._credit_ms -= distance * REFILL_MS
        return True

    def claim(self, node: NodeId, epoch: Epoch, now_ms: int) -> bool:
        """Record an unconfirmed report of a node's epoch; return False for a repeated report."""
        before = self._claims.get(node)
        is_new = before is None or before.expires_ms <= now_ms
        highest = epoch if before is None or is_new else max(epoch, before.epoch)
        self._claims[node] = Claim(highest, now_ms + CLAIM_MS)
        return is_new

    def settle(self, node: NodeId) -> None:
        """Remove the unconfirmed reports about `node`, which has responded with its own epoch."""
        self._claims.pop(node, None)

    def unconfirmed(self, ours: Epoch, now_ms: int) -> tuple[NodeId, ...]:
        """Return the nodes that unexpired reports place in an epoch above `ours`."""
        if not self._claims:
            return ()
        self._claims = {
            node: claim
            for node, claim in self._claims.items()
            if claim.epoch > ours and claim.expires_ms > now_ms
        }
        return tuple(self._claims)
