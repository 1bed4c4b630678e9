"""Was it linearizable? Checkers of histories that clients recorded.

A history is a set of operations with the times of their invocation and return, on one clock. It is
linearizable if each operation can be given one moment between its two times so that, carried out
one after the other at those moments, every answer is the one that was given.

Two checkers:

- `check_log`: an append-only log whose values are unique. Offsets *are* the order, so no search is
  needed: sort, and see that nobody who came later saw less. Linear after sorting.
- `linearizable`: any sequential model, by the search of Wing and Gong with Lowe's memory of
  configurations already seen; partition by key before calling it. Exponential in the number of
  operations that overlap, at worst.

An operation whose outcome is unknown (its connection broke) has no return: it may have happened at
any time after its invocation, or never.

Source: Herlihy and Wing (1990); Wing and Gong (1993); Lowe, "Testing for linearizability" (2017).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

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


def check_log(
    history: Iterable[LogAppend | LogRead], *, final: Sequence[Hashable] | None = None
) -> None:
    """See that the history is one of an append-only log that never loses anything.

    Args:    final: the log as it was read after everything ended, by offset; None if unknown.
             Offsets that hold something else (control records) are None in it.
    Raises:  NotLinearizable, naming two operations that contradict each other.
    """
    operations = list(history)
    _check_places(operations, final)
    _check_real_time(operations)


def _check_places(operations: list[LogAppend | LogRead], final: Sequence[Hashable] | None) -> None:
    """One value has one offset, one offset has one value, in every reader's eyes."""
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
    invoked = {}
    for operation in operations:
        if isinstance(operation, LogAppend):
            if operation.value in invoked:
                raise NotLinearizable(
                    f"{operation.value!r} was appended twice: values must be unique"
                )
            invoked[operation.value] = operation.invoked
            if operation.offset is not None:
                place(operation.offset, operation.value, operation)
                if final is not None and operation.offset >= len(final):
                    raise NotLinearizable(f"lost: {operation}; the log ends at {len(final)}")
                if final is not None and final[operation.offset] != operation.value:
                    raise NotLinearizable(
                        f"lost: {operation}; there is {final[operation.offset]!r}"
                    )
    for operation in operations:
        if isinstance(operation, LogRead):
            if final is not None and operation.length > len(final):
                raise NotLinearizable(f"lost: {operation}; the log ends at {len(final)}")
            for offset, value in enumerate(operation.values or ()):
                place(offset, value, operation)
                if value is not None and invoked.get(value, NEVER) >= operation.returned:
                    raise NotLinearizable(f"{value!r} was read before it was appended: {operation}")


def _check_real_time(operations: list[LogAppend | LogRead]) -> None:
    """Nobody sees less than what was complete before they asked.

    An append at offset n takes its moment when the log grows past n, a read of length n while it
    has that length; so an operation must not start after one that saw a longer log had returned.
    """

    def after(operation: LogAppend | LogRead) -> tuple[int, int]:
        """The length that the log has just before it took effect, and just after."""
        if isinstance(operation, LogRead):
            return operation.length, operation.length
        assert operation.offset is not None
        return operation.offset, operation.offset + 1

    known = [o for o in operations if isinstance(o, LogRead) or o.offset is not None]
    by_return = sorted(known, key=lambda o: o.returned)
    floor, witness, i = 0, None, 0
    for operation in sorted(known, key=lambda o: o.invoked):
        while i < len(by_return) and by_return[i].returned < operation.invoked:
            length = after(by_return[i])[1]
            if length > floor:
                floor, witness = length, by_return[i]
            i += 1
        if after(operation)[0] < floor:
            raise NotLinearizable(f"{operation} saw less than {witness}, which returned before")


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
