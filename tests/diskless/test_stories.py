"""Random stories of whole brokers under faults, from producers to consumers.

Every story is one seed and some virtual minutes; an error names the seed.

Source: docs/design/broker.md, docs/design/invariants.md.
"""

from __future__ import annotations

import pytest

from tests.diskless.story import Story
from tests.diskless.virtual_time import run
from tests.examples import seeds

pytestmark = pytest.mark.slow

SEEDS = seeds(25)


def lives(story: Story) -> Story:
    try:
        run(story.run)
        story.check()
    except AssertionError as error:
        error.add_note(story.note)
        raise
    return story


def test_simulated_brokers_never_lose_duplicate_or_reorder_records_for_consumers() -> None:
    again = lost = acknowledged = 0
    errors: set[int] = set()
    for seed in SEEDS:
        story = lives(Story(seed))
        again += story.sent_again
        lost += story.lost
        acknowledged += len(story.acknowledged)
        errors.update(story.errors)
    assert errors >= {0, 6, 7, 19, 56}, f"only {errors} ever happened"
    assert min(again, lost) > len(SEEDS), (again, lost)
    assert acknowledged > 50 * len(SEEDS), acknowledged
