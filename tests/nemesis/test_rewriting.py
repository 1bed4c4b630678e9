"""Brokers that merge and compact all the time, under the faults of the broker nemesis.

Nothing is lost, each key keeps its newest record, no object leaks, the audit is clean.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.nemesis.rounds import ALL_FAULTS, DISK_FAULTS, REWRITING_FAULTS, run_round
from tests.nemesis.test_nemesis import seed_of_run

ROUNDS: Final = int(os.environ.get("NEMESIS_ROUNDS", "4"))
FAULTS_OF_A_ROUND: Final = 3


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", range(ROUNDS))
def test_brokers_that_merge_and_compact_lose_no_record_and_leak_no_object_under_faults(
    tmp_path: Path, number: int
) -> None:
    seed = seed_of_run() + number
    possible = [name for name in ALL_FAULTS if name not in DISK_FAULTS]
    random = Random(seed)
    faults = [*random.sample(possible, FAULTS_OF_A_ROUND), random.choice(REWRITING_FAULTS)]
    result = run_round(tmp_path, seed, faults, rewriting=True)
    print(result)
    result.check()
