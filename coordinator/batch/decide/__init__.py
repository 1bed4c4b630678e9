"""Decisions: (request, state, context) to the records to append and the answer to give.

Nothing here changes anything, reads a clock or waits. What a decision knows is in its arguments,
and what it decides travels in records that `coordinator.batch.applying.apply_record` just follows.

- `base`: what every decision is given and returns.
- `commit`: the one that matters: offsets for an object's batches, and Kafka's idempotence table.
- `leases`, `objects`: which ids may be committed, and when an object may go.
- `topics`, `log_start`, `producers`: creation, deletion, DeleteRecords, retention, expiry.
- `clock`: stamps of the steady time by which records are deleted.
- `plans`: retention that somebody outside has planned.
- `rewriting`: leases of rewriters, and replacing runs of batches by theirs.

Functions named for a request answer it. The others are maintenance: the leader runs them.
"""

from coordinator.batch.decide.base import Context, Decision
from coordinator.batch.decide.clock import decide_accept_clock, decide_stamp
from coordinator.batch.decide.commit import decide_commit
from coordinator.batch.decide.leases import (
    decide_acquire,
    decide_expired_leases,
    decide_forgotten_leases,
    decide_release,
)
from coordinator.batch.decide.log_start import NewLogStart, decide_delete_records, decide_retention
from coordinator.batch.decide.markers import decide_markers
from coordinator.batch.decide.objects import (
    decide_found_orphans,
    decide_marks,
    decide_removals,
    decide_safe_to_delete,
    files_to_delete,
)
from coordinator.batch.decide.plans import decide_apply_retention
from coordinator.batch.decide.producers import decide_expired_producers, describe_producers
from coordinator.batch.decide.rewriting import (
    decide_replace_runs,
    decide_rewrite_lease,
    describe_cleaning,
)
from coordinator.batch.decide.topics import (
    decide_delete_topics,
    decide_dismantling,
    decide_expired_tombstones,
    decide_init_topics,
    decide_release_partitions,
)

__all__ = [
    "Context",
    "Decision",
    "NewLogStart",
    "decide_accept_clock",
    "decide_acquire",
    "decide_apply_retention",
    "decide_commit",
    "decide_delete_records",
    "decide_delete_topics",
    "decide_dismantling",
    "decide_expired_leases",
    "decide_expired_producers",
    "decide_expired_tombstones",
    "decide_forgotten_leases",
    "decide_found_orphans",
    "decide_init_topics",
    "decide_markers",
    "decide_marks",
    "decide_release",
    "decide_release_partitions",
    "decide_removals",
    "decide_replace_runs",
    "decide_retention",
    "decide_rewrite_lease",
    "decide_safe_to_delete",
    "decide_stamp",
    "describe_cleaning",
    "describe_producers",
    "files_to_delete",
]
