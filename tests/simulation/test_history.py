"""The checkers of histories reject what must be rejected, and nothing else.

Source: Herlihy and Wing, "Linearizability" (1990).
"""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulation.history import (
    NEVER,
    LogAppend,
    LogFetch,
    LogOperation,
    LogRead,
    NotLinearizable,
    Operation,
    check_log,
    linearizable,
)

GOOD: Final = {
    "nothing happened": ([], None),
    "appends and a read, one after the other": (
        [LogAppend(0, 1, "a", 0), LogAppend(2, 3, "b", 1), LogRead(4, 5, 2, ("a", "b"))],
        ["a", "b"],
    ),
    "overlapping appends may come in either order": (
        [LogAppend(0, 9, "a", 1), LogAppend(1, 8, "b", 0)],
        ["b", "a"],
    ),
    "a read that overlaps an append may see it or not": (
        [LogAppend(0, 9, "a", 0), LogRead(1, 2, 0), LogRead(3, 4, 1), LogRead(5, 6, 1)],
        ["a"],
    ),
    "an append of unknown outcome may have happened": (
        [LogAppend(0, NEVER, "a", None), LogRead(5, 6, 1, ("a",))],
        ["a"],
    ),
    "an append of unknown outcome may never have happened": (
        [LogAppend(0, NEVER, "a", None), LogAppend(5, 6, "b", 0)],
        ["b"],
    ),
    "a fetch that lags sees less than there is": (
        [LogAppend(0, 1, "a", 0), LogAppend(2, 3, "b", 1), LogFetch(4, 5, 0, ("a",))],
        ["a", "b"],
    ),
    "control records take offsets and hold no value": (
        [LogAppend(0, 1, "a", 1), LogRead(2, 3, 2, (None, "a"))],
        [None, "a"],
    ),
}

BAD: Final = {
    "an acknowledged append is lost": ([LogAppend(0, 1, "a", 0)], []),
    "another value is where an acknowledged one was": ([LogAppend(0, 1, "a", 0)], ["b"]),
    "two appends have one offset": ([LogAppend(0, 1, "a", 0), LogAppend(0, 1, "b", 0)], None),
    "a value is in the log twice": ([LogAppend(0, 1, "a", 0)], ["a", "a"]),
    "one value is acknowledged at two offsets": (
        [LogAppend(0, 1, "a", 0), LogRead(2, 3, 2, ("b", "a"))],
        None,
    ),
    "a later append is put before an earlier one": (
        [LogAppend(0, 1, "a", 1), LogAppend(2, 3, "b", 0)],
        ["b", "a"],
    ),
    "a read misses what was acknowledged before it began": (
        [LogAppend(0, 1, "a", 0), LogRead(2, 3, 0)],
        None,
    ),
    "a read sees less than a read before it": ([LogRead(0, 1, 5), LogRead(2, 3, 4)], None),
    "two readers see different values at one offset": (
        [LogRead(0, 1, 1, ("a",)), LogRead(0, 1, 1, ("b",))],
        None,
    ),
    "a read sees a value before it is appended": (
        [LogRead(0, 1, 1, ("a",)), LogAppend(2, 3, "a", 0)],
        ["a"],
    ),
    "an append is put below a length that was read before": (
        [LogRead(0, 1, 3), LogAppend(2, 3, "a", 1)],
        None,
    ),
    "a read saw more than there is in the end": ([LogRead(0, 1, 2)], ["a"]),
    "an append of unknown outcome happened twice": (
        [LogAppend(0, NEVER, "a", None)],
        ["a", "a"],
    ),
    "an append of unknown outcome is put before what was complete before it": (
        [LogAppend(0, 1, "a", 1), LogAppend(2, NEVER, "b", None)],
        ["b", "a"],
    ),
    "an append whose offset was not told is lost": ([LogAppend(0, 1, "a", None)], []),
    "the log has a value that was never appended": ([LogAppend(0, 1, "a", 0)], ["a", "b"]),
    "a fetch sees a value that is elsewhere in the end": (
        [LogAppend(0, 9, "a", None), LogAppend(0, 9, "b", None), LogFetch(1, 2, 0, ("b",))],
        ["a", "b"],
    ),
    "a fetch sees a value that is appended later": (
        [LogFetch(0, 1, 0, ("a",)), LogAppend(2, 3, "a", 0)],
        ["a"],
    ),
    "a value that was fetched is behind one that is appended later": (
        [LogAppend(0, NEVER, "a", None), LogFetch(1, 2, 1, ("a",)), LogAppend(3, 4, "b", 0)],
        ["b", "a"],
    ),
    "values are not unique, so nothing can be told": (
        [LogAppend(0, 1, "a", 0), LogAppend(2, 3, "a", 1)],
        None,
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_the_linearizability_checker_accepts_histories_of_a_log_without_losses(name: str) -> None:
    history, final = GOOD[name]

    check_log(history, final=final)


@pytest.mark.parametrize("name", BAD)
def test_the_linearizability_checker_rejects_a_history_that_is_not_linearizable(name: str) -> None:
    history, final = BAD[name]

    with pytest.raises(NotLinearizable):
        check_log(history, final=final)


def register(value: object, call: object) -> tuple[object, object]:
    """A cell with ("w", value), ("r",) and ("cas", expected, value)."""
    match call:
        case ("w", new):
            return new, "ok"
        case ("cas", expected, new):
            return (new, True) if value == expected else (value, False)
        case _:
            return value, value


REGISTER: Final[dict[str, tuple[bool, list[Any]]]] = {
    "a write is seen": (True, [(0, 1, ("w", 5), "ok"), (2, 3, ("r",), 5)]),
    "a stale read": (False, [(0, 1, ("w", 5), "ok"), (2, 3, ("r",), 0)]),
    "a read that overlaps a write sees either": (
        True,
        [(0, 9, ("w", 5), "ok"), (1, 2, ("r",), 0), (3, 4, ("r",), 5)],
    ),
    "and never the old value after the new one": (
        False,
        [(0, 9, ("w", 5), "ok"), (1, 2, ("r",), 5), (3, 4, ("r",), 0)],
    ),
    "two writes out of order": (
        False,
        [(0, 1, ("w", 1), "ok"), (2, 3, ("w", 2), "ok"), (4, 5, ("r",), 1)],
    ),
    "a value from nowhere": (False, [(0, 1, ("r",), 7)]),
    "a write of unknown outcome may be seen late": (
        True,
        [(0, NEVER, ("w", 5), None), (1, 2, ("r",), 0), (3, 4, ("r",), 5)],
    ),
    "or never": (True, [(0, NEVER, ("w", 5), None), (1, 2, ("r",), 0)]),
    "but not before it began": (False, [(0, 1, ("r",), 5), (2, NEVER, ("w", 5), None)]),
    "two winners of one compare-and-set": (
        False,
        [(0, 5, ("cas", 0, 1), True), (0, 5, ("cas", 0, 2), True)],
    ),
    "a chain of compare-and-sets": (
        True,
        [(0, 5, ("cas", 1, 2), True), (0, 5, ("cas", 0, 1), True), (6, 7, ("r",), 2)],
    ),
}


@pytest.mark.parametrize("name", REGISTER)
def test_the_linearizability_checker_gives_the_expected_verdict_on_each_register_history(
    name: str,
) -> None:
    expected, operations = REGISTER[name]

    history = [Operation(*operation) for operation in operations]

    assert linearizable(history, initial=0, step=register) is expected


def test_the_linearizability_checker_rejects_a_response_that_precedes_its_request() -> None:
    with pytest.raises(ValueError, match="before it was invoked"):
        linearizable([Operation(5, 4, ("r",), 0)], initial=0, step=register)


def test_the_linearizability_checker_raises_an_error_for_a_history_too_large_to_search() -> None:
    crowd = [Operation(0, 100, ("w", i), "ok") for i in range(12)]
    impossible = [*crowd, Operation(101, 102, ("r",), -1)]

    with pytest.raises(ValueError, match="partition the history"):
        linearizable(impossible, initial=0, step=register, max_configurations=1000)


@given(st.data())
def test_the_linearizability_checker_accepts_histories_of_a_real_register(
    data: st.DataObject,
) -> None:
    """Calls take effect at one moment each; widening their times changes nothing about that."""
    value: object = 0
    history = []
    for moment in range(data.draw(st.integers(1, 10))):
        call = data.draw(
            st.one_of(
                st.tuples(st.just("w"), st.integers(0, 3)),
                st.just(("r",)),
                st.tuples(st.just("cas"), st.integers(0, 3), st.integers(0, 3)),
            )
        )
        value, answer = register(value, call)
        before, after = data.draw(st.integers(0, 30)), data.draw(st.integers(0, 30))
        lost = data.draw(st.booleans()) and data.draw(st.booleans())
        end = NEVER if lost else 10 * moment + after
        history.append(Operation(10 * moment - before, end, call, answer))

    assert linearizable(history, initial=0, step=register)


def log(values: Any, call: Any) -> tuple[Any, object]:
    """An append-only log with ("append", value), ("length",), ("all",) and a fetch that may lag."""
    match call:
        case ("append", value):
            return (*values, value), len(values)
        case ("append untold", value):
            return (*values, value), "appended"
        case ("length",):
            return values, len(values)
        case ("fetch", offset, found):
            return values, values[offset : offset + len(found)] == found
        case _:
            return values, values


def as_operation(one: LogOperation) -> Operation:
    match one:
        case LogAppend(invoked, returned, value, None) if returned < NEVER:
            return Operation(invoked, returned, ("append untold", value), "appended")
        case LogAppend(invoked, returned, value, offset):
            return Operation(invoked, returned, ("append", value), offset)
        case LogRead(invoked, returned, length):
            return Operation(invoked, returned, ("length",), length)
        case LogFetch(invoked, returned, offset, values):
            return Operation(invoked, returned, ("fetch", offset, values), True)


def is_log(history: list[LogOperation], final: list[str]) -> bool:
    try:
        check_log(history, final=final)
    except NotLinearizable:
        return False
    return True


@st.composite
def log_histories(draw: st.DrawFn) -> tuple[list[LogOperation], list[str]]:
    """A history of a real log, of which each operation may be told in another way than it was."""
    final: list[str] = []
    history: list[LogOperation] = []
    never: list[str] = []
    number = st.integers(0, 5)
    for moment in range(draw(st.integers(1, 5))):
        invoked, returned = 4 * moment - draw(number), 4 * moment + draw(number)
        kind = draw(st.sampled_from(("append", "unknown", "untold", "never", "length", "fetch")))
        value = "abcde"[moment]
        if kind == "length":
            history.append(LogRead(invoked, returned, len(final)))
        elif kind == "fetch":
            offset = draw(st.integers(0, len(final)))
            end = draw(st.integers(offset, len(final)))
            history.append(LogFetch(invoked, returned, offset, tuple(final[offset:end])))
        elif kind == "never":
            never.append(value)
            history.append(LogAppend(invoked, NEVER, value, None))
        else:
            told = len(final) if kind == "append" else None
            history.append(
                LogAppend(invoked, NEVER if kind == "unknown" else returned, value, told)
            )
            final.append(value)
    for index, one in enumerate(history):
        if draw(st.integers(0, 3)):
            continue
        if draw(st.booleans()):
            moved = draw(st.integers(-12, 12))
            later = one.returned if one.returned >= NEVER else one.returned + moved
            history[index] = one._replace(invoked=one.invoked + moved, returned=later)
        elif isinstance(one, LogRead):
            history[index] = one._replace(length=draw(number))
        elif isinstance(one, LogFetch) or one.offset is not None:
            history[index] = one._replace(offset=draw(number))
    match draw(st.integers(0, 6)):
        case 0:
            final = draw(st.permutations(final))
        case 1:
            final = final[:-1]
        case 2 if final:
            final = [*final, draw(st.sampled_from([*final, *never]))]
    return history, final


@given(log_histories())
def test_the_linearizability_checker_of_logs_agrees_with_an_exhaustive_search(
    told: tuple[list[LogOperation], list[str]],
) -> None:
    history, final = told

    operations = [as_operation(one) for one in history]
    operations.append(Operation(100, 101, ("all",), tuple(final)))

    assert is_log(history, final) is linearizable(operations, initial=(), step=log)
