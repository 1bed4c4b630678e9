"""How much chance a test takes: little in `make test`, much in `make soak`.

Two kinds of tests draw. Those of Hypothesis draw other examples in every run, so a small number of
them adds up. A life that a seed stands for is told the same way in every run of `make test`, so
that it passes every time; `make soak` lives others.

    ESKER_EXAMPLES=20         so many times as many, of either kind
    ESKER_FIRST_SEED=1763     other lives than those of `make test`: seeds 1763, 1764 and so on

A failure names its seed, mostly in the test's name:
`test_random_schedules_of_group_requests_match_the_group_model[1765]` happens again with
`ESKER_FIRST_SEED=1765 pytest -k test_random_schedules_of_group_requests_match_the_group_model`.
"""

from __future__ import annotations

import os


def examples(count: int) -> int:
    """So many, times ESKER_EXAMPLES."""
    return count * int(os.environ.get("ESKER_EXAMPLES", "1"))


def first_seed() -> int:
    """ESKER_FIRST_SEED, or 0."""
    return int(os.environ.get("ESKER_FIRST_SEED", "0"))


def seeds(count: int) -> range:
    """So many, times ESKER_EXAMPLES, from the first one on."""
    return range(first_seed(), first_seed() + examples(count))
