"""Power may go at any step: what was flushed is there, what was truncated is not. DESIGN §5."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.segments.model import LogAndModel
from tests.simulation.disk import PowerLoss, SimulatedDisk

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 3), st.integers(2, 150)),
        st.tuples(st.just("append"), st.integers(1, 3), st.integers(2, 150)),
        st.tuples(st.just("append"), st.integers(1, 3), st.integers(2, 150)),
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


@settings(max_examples=300, deadline=None)
@given(operations=OPERATIONS)
def test_the_log_is_a_list_of_batches_while_the_power_stays_on(operations):
    model = LogAndModel(SimulatedDisk())
    run(model, operations)
    readable = [b for b in model.contents.batches if b.end_offset > model.contents.start]
    assert model.read_all() == readable


@settings(max_examples=600, deadline=None)
@given(
    rounds=st.lists(
        st.tuples(OPERATIONS, st.integers(0, 120), st.integers(0, 2)), min_size=1, max_size=3
    ),
    seed=st.integers(0, 2**32),
)
def test_flushed_data_survives_and_truncated_data_stays_away_whenever_the_power_goes(rounds, seed):
    rng = random.Random(seed)
    disk = SimulatedDisk()
    model = LogAndModel(disk)
    for operations, steps, crashes_while_opening in rounds:
        disk.power_loss_at = disk.steps + steps
        try:
            run(model, operations)
        except PowerLoss:
            pass
        model.crash_and_recover(rng, crashes_while_opening=crashes_while_opening)


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


@pytest.mark.parametrize("seed", range(4))
def test_a_long_story_may_end_before_each_of_its_steps(seed):
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
