"""May this broker serve data now, or is what it knows too old?

A broker finds batches in its own replica, and asks nobody. That is right as long as the objects it
finds are there. An object is deleted no sooner than `diskless.file.delete.delay.ms` after the last
reference to it went, so a replica that is younger than that names no deleted object. Half of the
delay is for the replica's age, and half for the reading: past the first half, data is no longer
served, with an error that sends the client to another broker.

The surprise: it is the broker's own doing only if it is cut off. With no quorum leader at all,
every broker's replica ages, and all go on serving what they know until then (KIP-1164, Risks);
and then nothing is deleted either, for nobody decides it. But a broker cannot tell the two apart.

An object that is gone all the same (404) is looked up behind the read barrier
(`diskless.fetch.service`).

Source: docs/design/broker.md#staleness-is-bounded.
"""

from __future__ import annotations

from collections.abc import Callable


class Staleness:
    """The judge of one broker's replicas."""

    def __init__(self, age_ms: Callable[[int], float | None], *, file_delete_delay_ms: int) -> None:
        """
        Args:  age_ms: of the replica of a coordinator partition; None: it was never level.
               file_delete_delay_ms: diskless.file.delete.delay.ms, the same on every node.
        """
        self.limit_ms = file_delete_delay_ms / 2
        self.refusals = 0  # for metrics
        self._age_ms = age_ms

    def may_serve(self, coordinator: int) -> bool:
        """Is the replica of this coordinator partition young enough to serve data by?"""
        age_ms = self._age_ms(coordinator)
        if age_ms is not None and age_ms <= self.limit_ms:
            return True
        self.refusals += 1
        return False
