"""Was it linearizable? Checkers of histories that clients recorded.

A history is a set of operations with the times of their invocation and return, on one clock. It is
linearizable if each operation can be given one moment between its two times so that, carried out
one after the other at those moments, every answer is the one that was given.

Two checkers:

- `check_log`: an append-only log whose values are unique. Offsets *are* the order, so no search is
  needed: sort, and see that no operation that came later saw less. Linear after sorting, and exact
  if the final log is given: `docs/testing.md` has the proof, and a test compares it with the other.
- `linearizable`: any sequential model, by the search of Wing and Gong with Lowe's memory of
  configurations already seen; partition by key before calling it. Exponential in the number of
  operations that overlap, at worst.

An operation whose outcome is unknown (its connection broke) has no return: it may have happened at
any time after its invocation, or never.

Source: Herlihy and Wing (1990); Wing and Gong (1993); Lowe, "Testing for linearizability" (2017).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias, TypeVar

NEVER: Final = 1 << 62
"""Return time of an operation whose outcome is unknown."""


class NotLinearizable(AssertionError):
    """No order of the operations explains what their clients saw."""


# --- the log --------------------------------------------------------------------------------------


class LogAppend(NamedTuple):
    """A value was appended; `offset` is where, None if its client was never told."""

    invoked: int
    returned: int  # NEVER if unknown
    value: Hashable
    offset: int | None


class LogRead(NamedTuple):
    """Somebody read the log, or only its length (then `values` is None)."""

    invoked: int
    returned: int
    length: int
    values: tuple[Hashable, ...] | None = None


class LogFetch(NamedTuple):
    """A consumer read values from `offset` on. It may lag: there may have been more behind them."""

    invoked: int
    returned: int
    offset: int
    values: tuple[Hashable, ...]


LogOperation: TypeAlias = LogAppend | LogRead | LogFetch


def check_log(history: Iterable[LogOperation], *, final: Sequence[Hashable] | None = None) -> None:
    """See that the history is one of an append-only log that never loses anything.

    Args:    final: the log as it was read after everything ended, by offset; None if unknown.
             Offsets that hold something else (control records) are None in it.
    Raises:  NotLinearizable, naming two operations that contradict each other.
    """
    # An empty fetch says nothing: its reader may have asked for any offset.
    operations = [one for one in history if not isinstance(one, LogFetch) or one.values]
    _check_real_time(operations, _check_places(operations, final))


def _check_places(
    operations: list[LogOperation], final: Sequence[Hashable] | None
) -> dict[Hashable, int]:
    """Require that a value has one offset and an offset one value, and return values' offsets."""
    by_offset: dict[int, Hashable] = {}
    by_value: dict[Hashable, int] = {}

    def place(offset: int, value: Hashable, witness: object) -> None:
        if value is None:
            return
        if by_offset.setdefault(offset, value) != value:
            raise NotLinearizable(
                f"offset {offset} holds {by_offset[offset]!r} and {value!r}: {witness}"
            )
        if by_value.setdefault(value, offset) != offset:
            raise NotLinearizable(f"{value!r} is at {by_value[value]} and at {offset}: {witness}")

    for offset, value in enumerate(final or ()):
        place(offset, value, "the final log")
    invoked: dict[Hashable, int] = {}
    for operation in operations:
        if isinstance(operation, LogAppend):
            if operation.value in invoked:
                raise NotLinearizable(
                    f"{operation.value!r} was appended twice: values must be unique"
                )
            invoked[operation.value] = operation.invoked
            if operation.offset is not None:
                place(operation.offset, operation.value, operation)
    for value in final or ():
        if value is not None and value not in invoked:
            raise NotLinearizable(f"{value!r} is in the final log, and was never appended")
    for operation in operations:
        if isinstance(operation, LogAppend):
            _check_kept(operation, by_value, final)
            continue
        values = operation.values or ()
        offset = operation.offset if isinstance(operation, LogFetch) else 0
        end_offset = offset + len(values) if isinstance(operation, LogFetch) else operation.length
        if final is not None and end_offset > len(final):
            raise NotLinearizable(f"lost: {operation}; the log ends at {len(final)}")
        for at, value in enumerate(values, offset):
            place(at, value, operation)
            if value is not None and invoked.get(value, NEVER) > operation.returned:
                raise NotLinearizable(f"{value!r} was read before it was appended: {operation}")
            if final is not None and final[at] != value:
                raise NotLinearizable(f"{operation}; {at} holds {final[at]!r} in the end")
    return by_value


def _check_kept(
    append: LogAppend, by_value: Mapping[Hashable, int], final: Sequence[Hashable] | None
) -> None:
    """Require that an append that returned is in the final log, at the offset that was told."""
    if final is None or append.returned >= NEVER:
        return
    offset = by_value.get(append.value) if append.offset is None else append.offset
    if offset is None or offset >= len(final):
        raise NotLinearizable(f"lost: {append}; the log ends at {len(final)}")
    if final[offset] != append.value:
        raise NotLinearizable(f"lost: {append}; there is {final[offset]!r}")


class Step(NamedTuple):
    """An operation on a value that only rises: it found `before`, and left `after`."""

    invoked: int
    returned: int
    before: int
    after: int
    operation: object


def check_rising(steps: Iterable[Step], seen: Iterable[Step] = ()) -> None:
    """Require that no step begins after one has returned that left more than this one found.

    Args:    seen: reads that may lag: the value was `after` at some time before they returned.
    Raises:  NotLinearizable.
    """
    judged = sorted(steps, key=lambda step: step.invoked)
    by_return = sorted([*judged, *seen], key=lambda step: step.returned)
    floor, witness, i = -1, None, 0  # a group that has committed nothing is at -1
    for step in judged:
        while i < len(by_return) and by_return[i].returned < step.invoked:
            if by_return[i].after > floor:
                floor, witness = by_return[i].after, by_return[i].operation
            i += 1
        if step.before < floor:
            raise NotLinearizable(
                f"{step.operation} saw less than {witness}, which returned before"
            )


def _check_real_time(operations: list[LogOperation], offsets: Mapping[Hashable, int]) -> None:
    """Require that no operation saw less than was complete before it began.

    An append at offset n takes its moment when the log grows past n, a read of length n while it
    has that length. An append of unknown outcome whose value is in the log is judged, too.
    """
    steps, seen = [], []
    for one in operations:
        if isinstance(one, LogRead):
            steps.append(Step(one.invoked, one.returned, one.length, one.length, one))
        elif isinstance(one, LogFetch):
            length = one.offset + len(one.values)
            seen.append(Step(one.invoked, one.returned, length, length, one))
        elif (offset := offsets.get(one.value)) is not None:
            steps.append(Step(one.invoked, one.returned, offset, offset + 1, one))
    check_rising(steps, seen)


# --- any model ------------------------------------------------------------------------------------

S = TypeVar("S", bound=Hashable)


class Operation(NamedTuple):
    """One call: `answer` is None if its outcome is unknown."""

    invoked: int
    returned: int  # NEVER if unknown
    call: Hashable
    answer: Hashable


def linearizable(
    history: Iterable[Operation],
    *,
    initial: S,
    step: Callable[[S, Hashable], tuple[S, Hashable]],
    max_configurations: int = 1_000_000,
) -> bool:
    """Does some order of the operations explain all answers?

    Args:    step: (state, call) -> (state after it, its answer); states are hashable.
             max_configurations: how many (operations done, state) pairs to look at.
    Raises:  ValueError if an operation returns before it begins, or the search grows too large.

    >>> write, read = Operation(0, 1, ("w", 5), "ok"), Operation(2, 3, ("r",), 0)
    >>> def register(value, call):
    ...     return (call[1], "ok") if call[0] == "w" else (value, value)
    >>> linearizable([write, read], initial=0, step=register)
    False
    """
    operations = sorted(history, key=lambda operation: operation.invoked)
    for operation in operations:
        if operation.returned < operation.invoked:
            raise ValueError(f"returned before it was invoked: {operation}")
    everything = (1 << len(operations)) - 1
    unknown = sum(1 << i for i, o in enumerate(operations) if o.returned >= NEVER)
    seen: set[tuple[int, S]] = set()
    stack: list[tuple[int, S]] = [(0, initial)]
    while stack:
        done, state = stack.pop()
        if (done | unknown) == everything:
            return True
        if (done, state) in seen:
            continue
        seen.add((done, state))
        if len(seen) > max_configurations:
            raise ValueError(
                f"more than {max_configurations} configurations: partition the history"
            )
        horizon = min(o.returned for i, o in enumerate(operations) if not done >> i & 1)
        for i, operation in enumerate(operations):
            if operation.invoked > horizon:
                break  # an operation that has not begun when another must have ended
            if done >> i & 1:
                continue
            after, answer = step(state, operation.call)
            if operation.returned >= NEVER or answer == operation.answer:
                stack.append((done | 1 << i, after))
    return False
