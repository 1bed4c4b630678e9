"""Random lives of a state machine, until all that is rare has happened in one of them.

A test that never met a duplicate proves nothing about duplicates, so such tests count what happens
and demand each kind. But Hypothesis tries the constants of whatever modules are loaded: which lives
a seed stands for depends on what else is tested in this process. So a round of lives has a seed,
and another follows with the next one while something is missing, up to a limit. `tests.examples`
says how to live others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.examples import examples, first_seed

ROUNDS: Final = 6
"""At most. The first has it all nearly always."""


def live_until_seen(
    machine: type[RuleBasedStateMachine],
    seen: Counter[str],
    wanted: Sequence[str],
    *,
    lives: int,
    steps: int,
) -> None:
    """Run rounds of lives. Raises what they raise, and AssertionError for what never happened.

    Args:  seen: what the machine counts; it is cleared first. lives: of each round.
    """
    seen.clear()
    first = first_seed()
    for number in range(first, first + ROUNDS):
        try:
            run_state_machine_as_test(
                seed(number)(type(machine.__name__, (machine,), {})),
                settings=settings(
                    max_examples=examples(lives),
                    stateful_step_count=steps,
                    deadline=None,
                    database=None,
                    phases=[Phase.generate],
                    suppress_health_check=list(HealthCheck),
                ),
            )
        except BaseException as error:
            error.add_note(f"reproduce: ESKER_FIRST_SEED={number}, with the same tests loaded")
            raise
        missing = [what for what in wanted if not seen[what]]
        print(f"seeds {first} to {number}: {dict(sorted(seen.items()))}")
        if not missing:
            return
    raise AssertionError(f"never happened in {ROUNDS} rounds: {missing}")
