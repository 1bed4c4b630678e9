"""Waits end when their condition is true; a wait that fails says what it waited for and saw."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.waiting import LONGEST_PAUSE_S, Deadline, wait_until, wait_until_async


def count_to(number: int) -> Callable[[], int]:
    """A condition that is false for so many calls, with an error in between."""
    left = [number]

    def condition() -> int:
        left[0] -= 1
        if left[0] == 1:
            raise OSError("not yet")
        return number if left[0] <= 0 else 0

    return condition


def test_the_test_wait_helper_returns_the_value_that_made_its_condition_true() -> None:
    assert wait_until(count_to(3), "three calls", retry_on=(OSError,)) == 3

    async def story() -> int:
        condition = count_to(3)

        async def asked() -> int:
            return condition()

        return await wait_until_async(asked, "three calls", retry_on=(OSError,))

    assert asyncio.run(story()) == 3


def test_an_unexpected_error_in_a_condition_ends_the_test_wait_helper() -> None:
    with pytest.raises(OSError, match="not yet"):
        wait_until(count_to(3), "three calls")


def test_the_wait_helper_fails_at_its_deadline_with_the_condition_and_the_last_state() -> None:
    said = r"not within 0 s: it is there; last seen: 'nothing'"
    with pytest.raises(AssertionError, match=said):
        wait_until(lambda: False, "it is there", state=lambda: "nothing", deadline_s=0)
    with pytest.raises(AssertionError, match=r"lambda: 1 > 2.*; last seen: False"):
        wait_until(lambda: 1 > 2, deadline_s=0)
    with pytest.raises(AssertionError, match=r"last seen: OSError\('not yet'\)"):
        wait_until(count_to(2), "two calls", retry_on=(OSError,), deadline_s=0)
    with pytest.raises(AssertionError, match=said):
        asyncio.run(
            wait_until_async(lambda: False, "it is there", state=lambda: "nothing", deadline_s=0)
        )


def test_the_pauses_of_the_test_wait_helper_grow_to_a_limit_and_end_at_the_deadline() -> None:
    now = 0.0
    deadline = Deadline("an hour passes", 60, lambda: now)
    pauses = [deadline.pause_s() for _ in range(20)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE_S
    now = 60.0
    with pytest.raises(AssertionError, match="an hour passes"):
        deadline.pause_s()
