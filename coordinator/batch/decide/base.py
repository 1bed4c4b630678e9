"""The input of every decision besides request and tables, and its result.

Three clocks, because they can disagree. `now_ms` is the wall clock: people see it, as append times.
`steady_ms` never steps: it is the wall clock as of the leader's election plus what its monotonic
clock has counted since. Delays and leases are measured on it. `shared_ms` is the steady time that
all leaders share, and None while it is in doubt: records and producers are deleted by the earlier
of it and the wall clock (docs/design/clocks.md).

A mark that an earlier leader wrote was written by another clock, so it says nothing about how long
ago it was: such a delay starts again with the present leader's election. That is why a clock that
jumps at a leader change deletes nothing early.

Source: docs/design/state-machines.md#decide-and-apply.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from coordinator.batch.cluster_view import ClusterView
from coordinator.batch.settings import CoordinatorSettings
from records.schema import MetadataRecord

R = TypeVar("R")


class Decision(NamedTuple, Generic[R]):
    """Records to append, all together or not at all, and the response to send then."""

    records: tuple[MetadataRecord, ...]  # none: nothing changes
    response: R


class Context(NamedTuple):
    """The clocks, the view and the settings of one decision."""

    now_ms: int  # ms since 1970
    steady_ms: int  # the leader's steady clock, on the same scale
    leader_since_ms: int  # its election, on the steady clock
    shared_ms: int | None  # the steady time of all leaders; None while the clock is held
    view: ClusterView
    settings: CoordinatorSettings

    def age_ms(self, since_ms: int) -> int:
        """Return the ms since `since_ms`, but at most the duration of this leadership.

        This is a lower bound: an earlier leader's clock says nothing about time.

        >>> context = Context(0, 5_000, 1_000, 0, None, None)
        >>> context.age_ms(4_000), context.age_ms(10), context.age_ms(9_999_999)
        (1000, 4000, 4000)
        """
        ours = self.leader_since_ms <= since_ms <= self.steady_ms
        return self.steady_ms - (since_ms if ours else self.leader_since_ms)

    @property
    def deletion_ms(self) -> int:
        """Return the steady time in ms for deletions by age, or 0 while the clock is held.

        >>> Context(9_000, 0, 0, 7_000, None, None).deletion_ms
        7000
        """
        return 0 if self.shared_ms is None else min(self.now_ms, self.shared_ms)
