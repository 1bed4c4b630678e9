"""`dump-log` over mutated files of every kind, for as long as one likes.

    ESKER_SOAK_SECONDS=600 pytest -m soak tests/esker/commands/test_soak.py

Half of the mutants get right checksums again, so that the damage reaches what lies behind them. A
failure names its seed; `ESKER_SOAK_SEED=<seed>` runs that round alone.
"""

from __future__ import annotations

import random
import struct
import time

import pytest
from crc32c import crc32c
from typer.testing import CliRunner

from esker.cli import app
from records.batch import CRC_START, HEADER_SIZE_BYTES
from tests.esker.commands.test_hostile import OPTIONS, SOUND
from tests.interop.recording import DIRECTORY, DYNAMIC, METADATA
from tests.soak.test_fuzz_files import (
    GROWTH_LIMIT_BYTES,
    ROUND_LIMIT_S,
    SECONDS,
    mutated,
    peak_bytes,
    recorded_files,
    seeds,
)

pytestmark = pytest.mark.soak


def sealed(data: bytes) -> bytes:
    """Correct the checksum of every batch that can be found in the bytes."""
    sealed = bytearray(data)
    position = 0
    while position + HEADER_SIZE_BYTES <= len(sealed):
        (length,) = struct.unpack_from(">i", sealed, position + 8)
        end = position + 12 + length
        if not position + HEADER_SIZE_BYTES <= end <= len(sealed):
            break
        crc = crc32c(memoryview(sealed)[position + CRC_START : end])
        struct.pack_into(">I", sealed, position + CRC_START - 4, crc)
        position = end
    return bytes(sealed)


@pytest.mark.timeout(SECONDS + 120)
def test_dump_log_does_not_crash_on_mutated_files_of_any_kind(tmp_path):
    originals = [SOUND, recorded_files(DIRECTORY / DYNAMIC / METADATA)]
    before = peak_bytes()
    for seed in seeds():
        rng = random.Random(seed)
        directory = tmp_path / "mutants"
        directory.mkdir(exist_ok=True)
        for name, content in mutated(rng.choice(originals), rng).items():
            seal = name.endswith((".log", ".checkpoint")) and rng.random() < 0.5
            (directory / name).write_bytes(sealed(content) if seal else content)
        names = [str(path) for path in sorted(directory.iterdir()) if path.suffix != ".snapshot"]
        started = time.monotonic()
        ran = CliRunner().invoke(app, ["dump-log", *rng.choice(OPTIONS), *names])
        again = f"reproduce: ESKER_SOAK_SEED={seed} pytest -m soak {__file__}"
        assert ran.exit_code in (0, 1), f"{again}\n{ran.output}\n{ran.exception!r}"
        assert ran.output.replace("\n", "").isprintable(), again
        assert time.monotonic() - started < ROUND_LIMIT_S, again
        for path in directory.iterdir():
            path.unlink()
    assert peak_bytes() - before < GROWTH_LIMIT_BYTES, "memory grew with what the bytes claimed"
