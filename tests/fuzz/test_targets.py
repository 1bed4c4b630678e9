"""A short run of every decoder on damaged bytes; `make soak` runs longer."""

from __future__ import annotations

import os
import time
from random import Random

import pytest

from tests.examples import first_seed
from tests.fuzz.mutation import mutated
from tests.fuzz.targets import TARGETS, Target, feed, repaired, samples_of

SECONDS = float(os.environ.get("ESKER_SOAK_SECONDS", "30"))
INPUTS = 400
LONGEST_S = 5.0  # an input takes microseconds; one that takes this long hangs


def run(target: Target, samples: list[bytes], rng: Random) -> None:
    """Feed the decoder with one damaged sample. A failure names the bytes."""
    data = mutated(rng.choice(samples), rng, samples)
    for candidate in repaired(target, data):
        started = time.monotonic()
        try:
            feed(target, candidate)
        except BaseException as error:
            error.add_note(f"bytes: {candidate.hex()}")
            raise
        assert time.monotonic() - started < LONGEST_S, f"slow: {candidate.hex()}"


@pytest.mark.parametrize("name", TARGETS)
def test_each_fuzzed_decoder_accepts_its_sample_inputs_or_raises_a_declared_error(
    name: str,
) -> None:
    for data in samples_of(name):
        feed(TARGETS[name], data)


@pytest.mark.parametrize("name", TARGETS)
def test_each_fuzzed_decoder_raises_only_declared_errors_on_damaged_sample_inputs(
    name: str,
) -> None:
    rng, samples = Random(first_seed()), samples_of(name)
    for _ in range(INPUTS):
        run(TARGETS[name], samples, rng)


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 120)
@pytest.mark.parametrize("name", TARGETS)
def test_each_fuzzed_decoder_raises_only_declared_errors_in_a_long_run_on_damaged_inputs(
    name: str,
) -> None:
    until, count = time.monotonic() + SECONDS, 0
    number = int.from_bytes(os.urandom(4))
    rng, samples = Random(number), samples_of(name)
    while time.monotonic() < until:
        run(TARGETS[name], samples, rng)
        count += 1
    print(f"{name}: {count} inputs in {SECONDS:.0f} s, seed {number}")
