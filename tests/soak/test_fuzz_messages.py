"""A byte-level mutator over every message at every version, for as long as one likes.

    ESKER_SOAK_SECONDS=600 pytest -m soak tests/soak/test_fuzz_messages.py

A round draws a message, damages its bytes and decodes them: the generated codec and the slow one
must both accept them, and then agree, or both refuse them. Every round has a seed, which a failure
names; `ESKER_SOAK_SEED=<seed>` runs that round alone.
"""

from __future__ import annotations

import os
import random
import time

import pytest

from records.codec import decode_message, encode_message
from records.errors import MalformedMessageError
from records.reference_decoder import reference_decode
from records.schema import Message
from tests.fuzz.mutation import mutated
from tests.fuzz.targets import encoded_messages
from tests.records.strategies import CASES, case_name

pytestmark = pytest.mark.soak

SECONDS = float(os.environ.get("ESKER_SOAK_SECONDS", "60"))
SEED = os.environ.get("ESKER_SOAK_SEED")
MESSAGES_PER_CASE = 10
MUTATIONS_PER_MESSAGE = 2_000
ROUND_LIMIT_S = 1.0  # decoding such a message takes microseconds


def decode_both_ways(cls: type[Message], version: int, data: bytes) -> None:
    """Fails unless both codecs say the same of the bytes, and soon."""
    start = time.monotonic()
    try:
        generated = decode_message(cls, data, version)
    except MalformedMessageError:
        with pytest.raises(MalformedMessageError):
            reference_decode(cls, memoryview(data), version)
    else:
        walked = reference_decode(cls, memoryview(data), version)
        assert encode_message(walked, version) == encode_message(generated, version)
    assert time.monotonic() - start < ROUND_LIMIT_S, f"slow: {data.hex()}"


@pytest.mark.timeout(SECONDS + 120)
def test_generated_and_reference_codec_decode_mutated_messages_equally_or_both_refuse_them() -> (
    None
):
    until = time.monotonic() + SECONDS
    chosen = random.SystemRandom()
    while True:
        number = int(SEED) if SEED else chosen.getrandbits(32)
        rng = random.Random(number)
        cls, version = rng.choice(CASES)
        originals = encoded_messages(cls, version, number, MESSAGES_PER_CASE)
        for _ in range(MUTATIONS_PER_MESSAGE):
            data = mutated(rng.choice(originals), rng)
            try:
                decode_both_ways(cls, version, data)
            except BaseException as error:
                name = case_name((cls, version))
                error.add_note(f"{name} {data.hex()}; reproduce: ESKER_SOAK_SEED={number}")
                raise
        if SEED or time.monotonic() > until:
            return
