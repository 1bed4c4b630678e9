"""Random operations of merging and compaction against a naive model. See `life`.

Source: docs/design/compaction.md.
"""

from __future__ import annotations

from collections import Counter

from tests.diskless.compaction.life import Life
from tests.diskless.virtual_time import run
from tests.examples import seeds

LIVES = 8
RARE = {
    "aborts", "commits", "abandoned tasks", "clock jumps", "deadlines", "deletions",
    "expired tombstones", "keyless refused", "operations inside tasks", "policy flips",
    "removed markers", "removed records", "restarts",
}  # fmt: skip


def live_some(lives: int) -> Counter[str]:
    """Run lives of consecutive seeds; return how often each rare thing happened."""
    seen: Counter[str] = Counter()
    for seed in seeds(lives):
        life = Life(seed)
        run(life.run)
        seen += life.seen
    return seen


def test_random_operations_leave_the_records_that_a_naive_model_of_compaction_keeps() -> None:
    seen = live_some(LIVES)
    assert set(seen) >= RARE, RARE - set(seen)
