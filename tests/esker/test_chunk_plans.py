"""Plans of chunks: `esker.client.chunk_plans`. Source: docs/design/chunks.md#plans."""

from __future__ import annotations

import json
from collections.abc import Sequence
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.controller.chunk_files import ChunkFileError
from esker.client.chunk_plans import (
    ChunkPlan,
    Move,
    PlanBroker,
    PlanChunk,
    PlanError,
    PlanPartition,
    PlanSettings,
    Sizes,
    check_plan,
    make_plan,
    plan_partitions,
    plan_text,
    read_plan,
)
from records.rpc.descriptions import DescribeTopicsResponse

T = UUID(int=7)
NO_CUTS = PlanSettings(cut_bytes=10**12)


def brokers(*ids: int, fenced: Sequence[int] = (), racks: str = "") -> list[PlanBroker]:
    return [
        PlanBroker(one, racks[place] if racks else None, one not in fenced)
        for place, one in enumerate(ids)
    ]


def partition(
    *closed: tuple[int, tuple[int, ...], int],
    active: tuple[int, tuple[int, ...], int],
    epochs: int = 0,
) -> PlanPartition:
    """Return partition 0 of t; each chunk is (start, replicas, bytes)."""
    chunks = tuple(PlanChunk(start, epochs, on, size) for start, on, size in closed)
    return PlanPartition("t", T, 0, chunks, PlanChunk(active[0], 0, active[1], active[2]))


def applied(plan: ChunkPlan, before: PlanPartition) -> PlanPartition:
    """Return the partition as the controller leaves it."""
    moves = {move.start_offset: move for move in plan.moves}
    closed = tuple(
        chunk
        if chunk.start_offset not in moves
        else chunk._replace(replicas=moves[chunk.start_offset].replicas, epoch=chunk.epoch + 1)
        for chunk in before.closed
    )
    active = before.active
    for cut in plan.cuts:
        assert cut.active_start == active.start_offset
        closed += (active._replace(epoch=0),)
        active = PlanChunk(active.start_offset + 100, 1, cut.replicas, 0)
    return before._replace(closed=closed, active=active)


def test_chunks_of_dead_and_excluded_brokers_move_to_other_racks_first() -> None:
    here = partition((0, (1, 2), 50), (10, (2, 3), 60), active=(20, (1, 3), 0))
    known = brokers(1, 2, 3, 4, 5, fenced=[2], racks="aabba")
    plan = make_plan(known, [here], NO_CUTS._replace(excluded=frozenset({3}), max_moves=0))
    assert [(move.start_offset, move.replicas) for move in plan.moves] == [
        (0, (1, 4)),
        (10, (5, 4)),
    ]
    assert plan.cuts == ()


def test_an_active_chunk_is_closed_if_it_is_large_or_its_brokers_are_gone() -> None:
    large = partition(active=(0, (1,), 200))
    small = partition(active=(0, (1,), 99))._replace(partition=1)
    gone = partition((0, (2,), 5), active=(10, (9,), 1))._replace(partition=2)
    empty = partition((0, (2,), 5), active=(10, (9,), 0))._replace(partition=3)
    plan = make_plan(brokers(1, 2, 3), [large, small, gone, empty], PlanSettings(cut_bytes=100))
    assert [(cut.partition, cut.active_start) for cut in plan.cuts] == [(0, 0), (2, 10)]
    assert plan.cuts[0].replicas == (3,), "the emptiest broker"


def test_a_plan_needs_as_many_brokers_as_replicas() -> None:
    here = partition((0, (1, 2), 5), active=(10, (1, 2), 1))
    with pytest.raises(PlanError, match="2 replicas need"):
        make_plan(brokers(1, 2, fenced=[2]), [here], NO_CUTS)


def test_an_excluded_broker_that_is_not_registered_is_refused_and_the_others_are_named() -> None:
    here = partition(active=(0, (1,), 5))
    with pytest.raises(PlanError, match=r"^no such broker: 998, 999; there are 1, 2, 3$"):
        make_plan(
            brokers(3, 1, 2, fenced=[2]),
            [here],
            NO_CUTS._replace(excluded=frozenset({2, 999, 998})),
        )


def test_a_plan_with_a_dead_broker_is_refused_and_names_it() -> None:
    here = partition((0, (1,), 5), active=(10, (1,), 1))
    plan = ChunkPlan((Move("t", T, 0, 0, 0, (2,)),))
    for now in (brokers(1, 3), brokers(1, 2, fenced=[2])):
        with pytest.raises(PlanError, match=r"fenced: 2; make a new plan"):
            check_plan(plan, now, [here])


def test_a_plan_that_was_applied_is_done_and_sends_nothing() -> None:
    known = brokers(1, 2, 3)
    here = partition((0, (9,), 50), active=(10, (1,), 500))
    plan = make_plan(known, [here], PlanSettings(cut_bytes=100))
    assert (len(plan.moves), len(plan.cuts)) == (1, 1)
    checked = check_plan(plan, known, [here])
    assert (checked.moves, checked.cuts) == (list(plan.moves), list(plan.cuts))
    after = applied(plan, here)
    checked = check_plan(plan, known, [after])
    assert (checked.moves, checked.cuts, checked.refused) == ([], [], {})
    assert checked.done == ["t-0 chunk 0", "t-0 chunk 10"]


def test_entries_that_no_longer_fit_are_refused_one_by_one() -> None:
    known = brokers(1, 2, 3)
    here = partition((0, (9,), 50), active=(10, (1,), 500))
    plan = make_plan(known, [here], PlanSettings(cut_bytes=100))
    other = check_plan(plan, known, [here._replace(topic_id=UUID(int=8))])
    assert set(other.refused.values()) == {"the topic was deleted since the plan was made"}
    moved = here._replace(closed=(here.closed[0]._replace(epoch=1, replicas=(3,)),))
    checked = check_plan(plan, known, [moved])
    refused = {"t-0 chunk 0": "its epoch is 1, the plan's is 0: make a new plan"}
    assert checked.refused == ({} if plan.moves[0].replicas == (3,) else refused)
    assert checked.cuts == list(plan.cuts), "the others are applied"
    cut = partition((0, (9,), 50), (10, (1,), 500), active=(20, (1,), 0))
    assert plan.cuts[0].replicas != (1,)
    assert "t-0 chunk 10" in check_plan(plan, known, [cut]).refused
    removed = partition(active=(30, (1,), 0))
    assert set(check_plan(plan, known, [removed]).refused) == {"t-0 chunk 0", "t-0 chunk 10"}


ids = st.lists(st.integers(1, 6), min_size=2, max_size=2, unique=True).map(tuple)
chunks = st.lists(st.tuples(ids, st.integers(0, 1_000)), max_size=8)


@given(
    parts=st.lists(chunks, min_size=1, max_size=4),
    fenced=st.sets(st.integers(1, 6), max_size=3),
    racks=st.text("ab", min_size=6, max_size=6),
)
def test_a_plan_leaves_sound_replicas_and_a_second_plan_has_nothing_to_do(
    parts: list[list[tuple[tuple[int, ...], int]]], fenced: set[int], racks: str
) -> None:
    known = brokers(1, 2, 3, 4, 5, 6, fenced=sorted(fenced), racks=racks)
    here = [
        partition(
            *((10 * at, on, size) for at, (on, size) in enumerate(found)),
            active=(1_000, (1, 2), 0),
        )._replace(partition=index)
        for index, found in enumerate(parts)
    ]
    settings = NO_CUTS._replace(max_moves=1_000)

    def spread(partitions: list[PlanPartition]) -> int:
        kept = dict.fromkeys((one for one in range(1, 7) if one not in fenced), 0)
        for each in partitions:
            for chunk in each.closed:
                for one in set(chunk.replicas) & set(kept):
                    kept[one] += chunk.size_bytes
        return max(kept.values()) - min(kept.values())

    away = make_plan(known, here, settings._replace(max_moves=0))
    plan = make_plan(known, here, settings)

    def after(made: ChunkPlan) -> list[PlanPartition]:
        return [
            applied(ChunkPlan(tuple(m for m in made.moves if m.partition == one.partition)), one)
            for one in here
        ]

    for each in after(plan):
        for chunk in each.closed:
            assert len(set(chunk.replicas)) == 2
            assert not set(chunk.replicas) & fenced
    assert spread(after(plan)) <= spread(after(away)), "evening out never makes it worse"
    assert make_plan(known, after(plan), settings).moves == ()


def test_a_plans_file_is_read_back_and_faults_in_it_are_named() -> None:
    here = partition((0, (9,), 50), active=(10, (1,), 500))
    plan = make_plan(brokers(1, 2, 3), [here], PlanSettings(cut_bytes=100))
    text = plan_text(plan)
    assert read_plan(text) == plan
    document = json.loads(text)
    for spoil, expected in (
        (lambda d: d.pop("cuts"), '"cuts" and "moves"'),
        (lambda d: d["moves"].append(d["moves"][0]), "twice"),
        (lambda d: d["moves"][0].update(topicId="x"), r"moves\[0\].topicId"),
        (lambda d: d["moves"][0].update(chunkEpoch=-1), r"moves\[0\].chunkEpoch"),
        (lambda d: d["cuts"][0].update(replicas=[1, 1]), r"cuts\[0\].replicas"),
        (lambda d: d["cuts"][0].update(activeStart="0"), r"cuts\[0\].activeStart"),
        (lambda d: d["cuts"][0].pop("topic"), r"cuts\[0\]: the keys"),
        (lambda d: d.update(cuts={}), "cuts: a list"),
    ):
        spoilt = json.loads(json.dumps(document))
        spoil(spoilt)
        with pytest.raises(ChunkFileError, match=expected):
            read_plan(json.dumps(spoilt))
    for bad in ("", "[]", "{}", "[" * 100_000):
        with pytest.raises(ChunkFileError):
            read_plan(bad)


def test_a_chunks_bytes_are_its_share_of_the_partitions_offsets() -> None:
    topic = DescribeTopicsResponse.Topic
    found = topic.Partition
    cut = [
        found.Chunk(
            start_offset=start, start_timestamp=0, stop_offset=last, end_offset=last,
            epoch=3, replicas=(1,), isr=(1,),
        )
        for start, last in ((0, 49), (50, 99), (100, -1))
    ]  # fmt: skip
    described = topic(
        topic_name="t", topic_id=T,
        partitions=(
            found(
                partition_index=0, leader_id=1, replicas=(1,), isr=(1,), coordinator=0,
                chunks=tuple(cut), assigned=(1,),
            ),
            found(
                partition_index=1, leader_id=1, replicas=(1,), isr=(1,), coordinator=0,
                chunks=(), assigned=(1, 2),
            ),
            found(
                partition_index=2, leader_id=1, replicas=(1,), isr=(1,), coordinator=0, chunks=(),
            ),
        ),
    )  # fmt: skip
    sizes = {(T, 0): Sizes(30, 130, 1_000), (T, 1): Sizes(0, 10, 70)}
    first, second = plan_partitions([described], sizes)
    assert [chunk.size_bytes for chunk in (*first.closed, first.active)] == [200, 500, 300]
    assert second.active == PlanChunk(0, 0, (1, 2), 70), "never cut"
