"""Decides whether a replica of this broker is recent enough to serve data.

A broker finds batches in its own replica, without asking a coordinator. That is correct as long as
the objects it finds exist. An object is deleted no sooner than `diskless.file.delete.delay.ms`
after the last reference to it was removed, so a replica that is younger than that names no deleted
object. Half of the delay is for the replica's age, and half for the reading: past the first half
the broker serves no data, with an error that sends the client to another broker.

The trap: a replica ages because this broker is cut off, or because the quorum has no leader at all.
In the second case every broker's replica ages, all keep serving until the limit (KIP-1164, Risks),
and no object is deleted, because no leader decides it. A broker cannot tell the two cases apart.

An object that is missing all the same (404) is looked up behind the read barrier
(`diskless.fetch.service`).

Source: docs/design/broker.md#staleness-is-bounded.
"""

from __future__ import annotations

from collections.abc import Callable


class Staleness:
    """Decides which replicas of one broker may serve data."""

    def __init__(self, age_ms: Callable[[int], float | None], *, file_delete_delay_ms: int) -> None:
        """Limit the age of a replica to half of the file deletion delay.

        Args:  age_ms: gives the age of the replica of a coordinator partition; None if it has
                   never caught up with its leader.
               file_delete_delay_ms: diskless.file.delete.delay.ms, the same on every node.
        """
        self.limit_ms = file_delete_delay_ms / 2
        self.refusals = 0  # for metrics
        self._age_ms = age_ms

    def may_serve(self, coordinator: int) -> bool:
        """Return whether this coordinator partition's replica is recent enough to serve data."""
        age_ms = self._age_ms(coordinator)
        if age_ms is not None and age_ms <= self.limit_ms:
            return True
        self.refusals += 1
        return False
