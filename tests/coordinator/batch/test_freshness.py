"""How old a replica is at most, by the words of its leader.

Source: docs/design/broker.md#staleness-is-bounded.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coordinator.batch.freshness import WORDS_KEPT, Freshness
from raft.interfaces import CommittedAsOf
from records.types import Offset
from tests.doubles.memory_log import MemoryLog


class Replica:
    """A log whose leader's statements, and a state whose progress, the test controls."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.applied = 0
        self.freshness = Freshness(self.log, lambda: self.applied)

    def hear(self, high_watermark: int, at_s: float) -> None:
        self.log.committed_as_of = CommittedAsOf(Offset(high_watermark), at_s)
        self.freshness.note()

    def apply(self, offset: int) -> None:
        self.applied = offset
        self.freshness.note()


def test_a_coordinator_replica_that_was_never_up_to_date_reports_no_age() -> None:
    replica = Replica()
    assert replica.freshness.age_ms(9.0) is None
    replica.hear(5, 1.0)
    assert replica.freshness.age_ms(9.0) is None


def test_a_coordinator_replicas_age_counts_from_the_newest_applied_high_watermark() -> None:
    replica = Replica()
    for high_watermark, at_s in ((10, 1.0), (20, 2.0), (30, 3.0)):
        replica.hear(high_watermark, at_s)
    replica.apply(25)
    assert replica.freshness.age_ms(4.0) == 2_000
    replica.apply(30)
    assert replica.freshness.age_ms(4.0) == 1_000


def test_a_coordinator_replicas_age_grows_without_a_connection_but_not_while_the_log_is_idle() -> (
    None
):
    replica = Replica()
    replica.apply(10)
    for at_s in (1.0, 2.0, 3.0):
        replica.hear(10, at_s)
        assert replica.freshness.age_ms(at_s) == 0
    assert replica.freshness.age_ms(60.0) == 57_000


def test_a_lagging_coordinator_replica_stores_the_oldest_high_watermarks_not_yet_applied() -> None:
    """Those are applied first: without them the replica would never count as up to date."""
    replica = Replica()
    for number in range(1, 3 * WORDS_KEPT):
        replica.hear(10 * number, float(number))
    replica.apply(10 * WORDS_KEPT - 10)
    assert replica.freshness.age_ms(3 * WORDS_KEPT) == (2 * WORDS_KEPT + 1) * 1_000
    replica.apply(10 * (3 * WORDS_KEPT - 1))
    assert replica.freshness.age_ms(3 * WORDS_KEPT) == 1_000


@given(
    words=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=3 * WORDS_KEPT),
    lag=st.integers(0, 200),
)
def test_a_coordinator_replica_that_drops_high_watermark_reports_never_reports_too_low_an_age(
    words: list[tuple[int, int]], lag: int
) -> None:
    """Statements dropped for want of room make it older, never younger."""
    replica, high_watermark, said = Replica(), 0, []
    for now, (grown, applied) in enumerate(words, start=1):
        high_watermark += grown
        said.append((high_watermark, now))
        replica.hear(high_watermark, float(now))
        replica.apply(max(replica.applied, min(high_watermark - lag, replica.applied + applied)))
        level = [at for offset, at in said if offset <= replica.applied]
        age_ms = replica.freshness.age_ms(float(now))
        assert age_ms is None or (level and age_ms >= (now - level[-1]) * 1_000)
        assert len(replica.freshness._words) <= WORDS_KEPT
