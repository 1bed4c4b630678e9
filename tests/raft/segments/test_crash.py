"""Power may go at any step: what was flushed is there, what was truncated is not.

Source: docs/design/quorum.md#recovery-point.
"""

from __future__ import annotations

import contextlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raft.segments import Log
from raft.segments.segment import segment_name
from tests.examples import examples, seeds
from tests.raft.segments.conftest import batch
from tests.raft.segments.model import DIRECTORY, LogAndModel
from tests.simulation.disk import PowerLoss, SimulatedDisk

pytestmark = pytest.mark.slow

APPEND = st.tuples(st.just("append"), st.integers(1, 2), st.sampled_from([50, 120, 300]))
"""Few sizes, so that a segment that should be gone often fits where it was."""

OPERATIONS = st.lists(
    st.one_of(
        APPEND,
        APPEND,
        APPEND,
        st.tuples(st.just("flush")),
        st.tuples(st.just("flush")),
        st.tuples(st.just("next_epoch")),
        st.tuples(st.just("pass_time"), st.sampled_from([400, 1100])),
        st.tuples(st.just("record")),
        st.tuples(st.just("truncate"), st.floats(0, 1)),
        st.tuples(st.just("drop_prefix"), st.floats(0, 1)),
        st.tuples(st.just("reset"), st.integers(1, 9)),
        st.tuples(st.just("restart")),
    ),
    min_size=1,
    max_size=40,
)


def run(model: LogAndModel, operations: list[tuple]) -> None:
    for name, *arguments in operations:
        getattr(model, name)(*arguments)


@settings(max_examples=examples(120), deadline=None)
@given(operations=OPERATIONS)
def test_without_power_loss_the_segmented_log_behaves_like_a_python_list_of_batches(operations):
    model = LogAndModel(SimulatedDisk())
    run(model, operations)
    readable = [b for b in model.contents.batches if b.end_offset > model.contents.start]
    assert model.read_all() == readable
    model.check_indexes()


@settings(max_examples=examples(200), deadline=None)
@given(
    rounds=st.lists(
        st.tuples(OPERATIONS, st.integers(0, 120), st.integers(0, 2)), min_size=1, max_size=3
    ),
    seed=st.integers(0, 2**32),
)
def test_after_a_power_loss_flushed_batches_remain_and_truncated_batches_do_not_return(
    rounds, seed
):
    rng = random.Random(seed)
    disk = SimulatedDisk()
    model = LogAndModel(disk)
    for operations, steps, crashes_while_opening in rounds:
        disk.power_loss_at = disk.steps + steps
        with contextlib.suppress(PowerLoss):
            run(model, operations)
        model.crash_and_recover(rng, crashes_while_opening=crashes_while_opening)


@pytest.mark.parametrize("seed", seeds(40))
def test_a_segment_removed_by_a_log_truncation_does_not_return_after_a_power_loss(seed):
    """The one before it ends, flushed, exactly where the deleted one began.

    Source: docs/design/quorum.md#recovery-point.
    """
    model = LogAndModel(SimulatedDisk())
    run(model, [("append", 1, 300)] * 3)  # one segment each
    run(model, [("flush",), ("truncate", 0.0), ("append", 1, 300), ("flush",)])
    model.crash_and_recover(random.Random(seed))
    assert model.log.log_end_offset == 1


@pytest.mark.parametrize("seed", seeds(40))
def test_bytes_that_log_recovery_cut_from_a_segment_do_not_return_after_a_power_loss(seed):
    rng = random.Random(seed)
    model = LogAndModel(SimulatedDisk())
    run(model, [("append", 1, 300)] * 3)
    model.log.flush()
    model.disk.replace(DIRECTORY / "recovery-point", _recovery_point_of_an_empty_log())
    model.disk.flip_bit(DIRECTORY / segment_name(0), 100)
    model.contents = model.contents.__class__(0, model.contents.batches, 0)
    model.allowed = [model.contents]
    model.crash_and_recover(rng)
    assert model.log.log_end_offset == 0
    run(model, [("append", 1, 300), ("flush",)])
    model.crash_and_recover(rng)
    assert model.log.log_end_offset == 1


@pytest.mark.parametrize("seed", seeds(40))
def test_a_power_loss_during_the_deletion_of_old_segments_does_not_remove_the_new_segment(seed):
    """Its name was not durable yet, the deletion of the others could be. Found by soak."""
    model = LogAndModel(SimulatedDisk())
    run(model, [("append", 1, 300), ("flush",), ("append", 1, 300), ("drop_prefix", 1.0)])
    model.crash_and_recover(random.Random(seed))
    assert model.log.log_start_offset == 1


@pytest.mark.parametrize("seed", seeds(40))
@pytest.mark.parametrize("last", [("record",), ("restart",)])
def test_log_recovery_scans_a_segment_that_ends_at_the_recovery_point(seed, last):
    """It was rolled after the point was recorded: its index files are those from before a
    truncation, or half written. Found by soak."""
    model = LogAndModel(SimulatedDisk())
    run(model, [("append", 1, 50)] * 4)  # 118 bytes each: the third has entries in both indexes
    run(model, [("restart",), ("truncate", 0.5), ("append", 1, 120), ("flush",), ("record",)])
    run(model, [("append", 1, 300)])
    model.disk.power_loss_at = model.disk.steps + seed % 8
    with contextlib.suppress(PowerLoss):
        run(model, [last])
    model.crash_and_recover(random.Random(seed))


@pytest.mark.parametrize("seed", seeds(60))
def test_log_recovery_does_not_trust_an_index_file_that_was_written_only_in_part(seed):
    """Recovery is cut short while it rebuilds what a trusted segment lacks. Found by soak."""
    rng = random.Random(seed)
    model = LogAndModel(SimulatedDisk())
    run(model, [("append", 1, 50)] * 12)
    model.log.close()
    for name in model.disk.listdir(DIRECTORY):
        if name.endswith("index"):
            model.disk.unlink(DIRECTORY / name)
    model.disk.fsync_directory(DIRECTORY)
    model.contents = model.allowed[0].__class__(0, model.contents.batches, 12)
    model.allowed = [model.contents]
    model.crash_and_recover(rng, crashes_while_opening=3)


def _recovery_point_of_an_empty_log() -> bytes:
    disk = SimulatedDisk()
    LogAndModel(disk)
    return disk.content(DIRECTORY / "recovery-point")


STORY = [
    *[("append", 2, 60)] * 9,
    ("flush",),
    ("next_epoch",),
    *[("append", 1, 120)] * 6,
    ("pass_time", 1100),
    ("flush",),
    ("append", 3, 40),
    ("next_epoch",),
    *[("append", 1, 140)] * 5,
    ("truncate", 0.4),
    *[("append", 1, 100)] * 6,
    ("flush",),
    ("drop_prefix", 0.6),
    ("append", 1, 50),
    ("restart",),
    *[("append", 1, 100)] * 4,
    ("reset", 7),
    *[("append", 1, 100)] * 4,
    ("flush",),
    ("record",),
]


@pytest.mark.parametrize("seed", seeds(2))
def test_a_log_opens_after_a_crash_at_any_disk_operation(seed):
    disk = SimulatedDisk()
    run(LogAndModel(disk), STORY)
    for step in range(15, disk.steps):  # the first steps create the log
        disk = SimulatedDisk()
        model = LogAndModel(disk)
        disk.power_loss_at = step
        with pytest.raises(PowerLoss):
            run(model, STORY)
        model.crash_and_recover(random.Random(seed * 1000 + step), crashes_while_opening=step % 2)
        disk.power_loss_at = None
        run(model, STORY)


@pytest.mark.parametrize("seed", seeds(6))
def test_the_creation_of_a_log_succeeds_when_repeated_after_a_power_loss(seed):
    """The caller lists a log once `create` has returned: until then there may be none, or half."""
    disk = SimulatedDisk()
    Log.create(disk, DIRECTORY)
    for step in range(disk.steps):
        disk = SimulatedDisk()
        disk.power_loss_at = step
        with pytest.raises(PowerLoss):
            Log.create(disk, DIRECTORY)
        disk.crash(random.Random(seed * 100 + step))
        log = Log.create(disk, DIRECTORY)
        log.append(batch(0))
        log.flush()
        disk.crash(random.Random(step))
        assert Log.open(disk, DIRECTORY).log_end_offset == 1
