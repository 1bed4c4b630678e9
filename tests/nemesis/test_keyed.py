"""The audit of cut logs finds what is lost, moved or out of order, and nothing else."""

from __future__ import annotations

import pytest

from tests.nemesis.keyed import KeyedWorkload, Told, whole_log
from tests.simulation.history import LogAppend, LogFetch, LogRead, NotLinearizable

A, B, C, D = b"a", b"b", b"c", b"d"


def test_the_history_checker_reconstructs_a_log_from_the_final_state_and_the_client_responses() -> (
    None
):
    """Offset 0 is a leader's change (nobody was told), B was not acknowledged."""
    told = Told(state=(A, B, C), end_offset=4, tail=[None, D])
    assert whole_log(told, 6, {1: A, 3: C}) == [None, A, B, C, None, D]
    assert whole_log(told, 5, {1: A, 3: C}) == [None, A, B, C, None], "D is not committed"


def test_the_history_checker_prefers_a_write_that_was_read_to_an_unacknowledged_write() -> None:
    told = Told(state=(A, B, C), end_offset=5, tail=[])
    assert whole_log(told, 5, {0: A, 1: None, 4: C}) == [A, None, B, None, C]


@pytest.mark.parametrize(
    ("state", "known"),
    [
        ((B, A), {0: A, 1: B}),  # out of order
        ((A, B, C), {0: A, 1: C}),  # no place is left for B
        ((A, B), {0: A, 7: B}),  # past the checkpoint's end
    ],
)
def test_the_per_key_history_checker_rejects_a_state_that_contradicts_the_acknowledged_offsets(
    state, known
) -> None:
    with pytest.raises(NotLinearizable):
        whole_log(Told(state=state, end_offset=3, tail=[]), 3, known)


def audited(state: tuple[bytes, ...], *, tail: tuple[bytes | None, ...] = ()) -> None:
    """A and B were acknowledged at 0 and 1, the end was read as 3, and this is on the disks."""
    workload = KeyedWorkload({}, seed=0, clients=0)
    workload.history += [
        LogAppend(1, 2, A, 0),
        LogAppend(3, 4, B, 1),
        LogRead(7, 8, 3),
    ]
    workload.seen.append(LogFetch(9, 10, 1, (B, None)))
    told = Told(state=state, end_offset=3 - len(tail), tail=list(tail))
    workload.check(whole_log(told, 3, workload.known()))


def test_the_per_key_history_checker_accepts_a_log_whose_beginning_is_in_a_checkpoint() -> None:
    audited((A, B))
    audited((A,), tail=(B, None))


@pytest.mark.parametrize(
    ("state", "tail"),
    [
        ((A,), ()),  # B is lost from the state
        ((B,), ()),  # A is
        ((A, B, C), ()),  # C stands where nothing was read
        ((A,), (C, None)),  # another value where B was acknowledged
        ((), ()),  # all is lost
    ],
)
def test_the_per_key_history_checker_rejects_a_log_with_lost_or_moved_records(state, tail) -> None:
    with pytest.raises(NotLinearizable):
        audited(state, tail=tail)
