"""Coordinators that are wrong in one way each about rewriting: what the tests must notice.

Source: docs/design/compaction.md#rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest.mock import patch

from msgspec.structs import replace

from coordinator.batch import applying, memory
from coordinator.batch.decide import leases, rewriting
from coordinator.batch.decide.rewriting import _Judge
from coordinator.batch.runs import NOT_MARKED, digest_runs
from coordinator.batch.sqlite.runs import Runs
from coordinator.batch.state import Cleaning, cleaned, cleaning_of

MUTANTS: Final[dict[str, Callable[[], Any]]] = {}


def mutant(make: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
    """Register a mutant under its name."""
    MUTANTS[make.__name__] = contextmanager(make)
    return make


@contextmanager
def advancing(by: Callable[..., Cleaning]) -> Iterator[None]:
    """Have decisions and `apply` count in another way how far a partition is cleaned."""
    with ExitStack() as stack:
        for module in (applying, rewriting):
            stack.enter_context(patch.object(module, "cleaned", by))
        yield


@mutant
def a_range_is_replaced_while_its_replacement_is_proposed() -> Iterator[None]:
    """Ranges in the overlay are not looked at."""
    begin = _Judge.__init__

    def forgetful(self: _Judge, *arguments: Any) -> None:
        begin(self, *arguments)
        self._replacing = {}

    with patch.object(_Judge, "__init__", forgetful):
        yield


@mutant
def runs_are_live_by_the_applied_log_start() -> Iterator[None]:
    """A proposed log start kills no run."""
    judge = rewriting._refuse_runs
    with patch.object(rewriting, "_refuse_runs", lambda row, live, _: judge(row, live, 0)):
        yield


@mutant
def the_digest_of_the_old_runs_is_not_compared() -> Iterator[None]:
    """The count and the ends of the range are enough."""
    judge = rewriting._refuse_runs

    def trusting(row: Any, live: Any, log_start: int) -> Any:
        places = [(run.object_id, run.byte_offset, run.byte_size) for run in live]
        return judge(replace(row, old_runs_digest=digest_runs(places)), live, log_start)

    with patch.object(rewriting, "_refuse_runs", trusting):
        yield


@mutant
def one_refused_partition_refuses_the_others() -> Iterator[None]:
    """A request is accepted whole or not at all."""
    judge = _Judge.judge
    before: list[Any] = []

    def strict(self: _Judge, topic_id: Any, row: Any) -> Any:
        outcome = judge(self, topic_id, row)
        refused = not isinstance(outcome, rewriting._Accepted | rewriting._Done)
        before.extend([outcome] if refused else [])
        return outcome

    write = rewriting._record

    def whole(request: Any, rows: Any, context: Any, *, closes: bool) -> Any:
        return write(request, () if before else rows, context, closes=closes)

    with patch.object(_Judge, "judge", strict), patch.object(rewriting, "_record", whole):
        yield


@mutant
def a_repeat_is_not_judged_by_state() -> Iterator[None]:
    """A repeated row finds runs that it does not name."""
    with patch.object(_Judge, "_lies_in_object", lambda *_: False):
        yield


@mutant
def an_open_object_is_marked() -> Iterator[None]:
    """An object is closed from its first runs on, as far as deletion goes."""
    with patch.object(memory, "OPEN", NOT_MARKED):
        yield


@mutant
def a_closed_object_takes_runs() -> Iterator[None]:
    """A lease is enough."""
    with patch.object(rewriting, "_find_room", lambda *_: True):
        yield


@mutant
def the_end_of_a_lease_leaves_its_objects_open() -> Iterator[None]:
    """Nothing closes them any more."""
    with patch.object(memory, "ended_objects", lambda *_: []):
        yield


@mutant
def a_lease_in_use_expires() -> Iterator[None]:
    """Renewals do not count."""
    with patch.object(leases, "_last_seen_ms", lambda lease: lease.granted_at_ms):
        yield


@mutant
def cleaned_until_rises_over_gaps() -> Iterator[None]:
    """Ranges need not be contiguous."""

    def eager(row: Any, log_start: int, _: int, end: int, bound: int) -> Cleaning:
        return cleaned(row, log_start, 0, end, bound)

    with advancing(eager):
        yield


@mutant
def another_bound_goes_on_where_the_last_one_was() -> Iterator[None]:
    """A round of another map does not begin at the log start."""

    def lax(row: Any, log_start: int, first: int, end: int, bound: int) -> Cleaning:
        before = cleaning_of(row, log_start)
        return cleaned(before._replace(bound=bound), log_start, first, end, bound)

    with advancing(lax):
        yield


@mutant
def horizons_are_accepted_anywhere() -> Iterator[None]:
    """Flags are written down, and not judged."""
    judge = _Judge.judge
    with patch.object(
        _Judge, "judge", lambda self, topic_id, row: judge(self, topic_id, replace(row, flags=0))
    ):
        yield


@mutant
def spans_of_replaced_runs_stay() -> Iterator[None]:
    """The time index is that of the old runs."""
    with patch.object(Runs, "_rebuild_spans", lambda *_: None):
        yield


@mutant
def objects_are_rewritten_below_the_feature_level() -> Iterator[None]:
    """Old brokers would serve wrong offsets."""
    with patch.object(rewriting, "may_write_format", lambda *_: True):
        yield


@mutant
def a_rewritten_run_has_the_time_of_its_replacement() -> Iterator[None]:
    """Retention by append time would keep it for longer."""
    write = rewriting._record

    def late(*words: Any, **more: Any) -> Any:
        record = write(*words, **more)
        times = (record.replaced_at_ms,) * len(record.append_times)
        return replace(record, append_times=times)

    with patch.object(rewriting, "_record", late):
        yield


@mutant
def a_record_replaces_any_number_of_runs() -> Iterator[None]:
    """Applying it stops the coordinator for as long as the client likes."""
    with patch.object(rewriting, "MAX_REPLACED_RUNS", 1 << 30):
        yield
