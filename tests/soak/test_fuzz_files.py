"""A byte-level mutator over log directories, and random crashes, for as long as one likes.

    ESKER_SOAK_SECONDS=600 pytest -m soak tests/soak/test_fuzz_files.py

Every round has a seed of its own, which a failure names; `ESKER_SOAK_SEED=<seed>` runs that round
alone. The files come from ours (every codec, control batches, several epochs) and from the ones
that a real Kafka wrote (tests/data/kafka).
"""

from __future__ import annotations

import os
import random
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from raft.segments import (
    Log,
    LogConfig,
    StorageError,
    read_meta_properties,
    read_partition_metadata,
    read_quorum_state,
)
from records.batch import ControlType, iter_records
from records.batch_writer import build_batch, build_control_batch
from records.compression import Compression
from records.errors import RecordError
from tests.raft.segments.model import LogAndModel
from tests.simulation.disk import PowerLoss, SimulatedDisk

pytestmark = pytest.mark.soak

SECONDS = float(os.environ.get("ESKER_SOAK_SECONDS", "60"))
SEED = os.environ.get("ESKER_SOAK_SEED")
DIRECTORY = Path("/fuzz")
CONFIG = LogConfig(segment_bytes=2500, index_interval_bytes=300)
RECORDED = Path(__file__).parent.parent / "data" / "kafka"
DECOMPRESSED_LIMIT_BYTES = 1 << 20
ROUND_LIMIT_S = 5.0  # a round takes milliseconds; one that takes this long hangs
GROWTH_LIMIT_BYTES = 256 << 20
INTERESTING = [b"\0", b"\xff", b"\x7f", b"\x80", b"\xff" * 4, b"\x7f\xff\xff\xff", b"\0" * 64]


@pytest.mark.timeout(SECONDS + 120)
def test_log_recovery_repairs_or_reports_the_damage_of_mutated_log_directories():
    originals = [our_files(), *map(recorded_files, sorted(RECORDED.glob("*/__cluster*")))]

    def one(rng: random.Random) -> None:
        files = mutated(rng.choice(originals), rng)
        disk = SimulatedDisk()
        disk.make_directory(DIRECTORY)
        for name, content in files.items():
            disk.replace(DIRECTORY / name, content)
        read_small_files(disk)
        with suppress(RecordError, StorageError):
            read_log(disk)
            read_log(disk)  # what the first opening repaired stays repaired

    before = peak_bytes()
    run(one)
    assert peak_bytes() - before < GROWTH_LIMIT_BYTES, "memory grew with what the bytes claimed"


@pytest.mark.timeout(SECONDS + 120)
def test_a_log_recovers_from_power_losses_after_random_operations():
    def one(rng: random.Random) -> None:
        disk = SimulatedDisk()
        model = LogAndModel(disk)
        for _ in range(rng.randrange(1, 6)):
            disk.power_loss_at = disk.steps + rng.randrange(150)
            with suppress(PowerLoss):
                for _ in range(rng.randrange(60)):
                    operate(model, rng)
            model.crash_and_recover(rng, crashes_while_opening=rng.randrange(3))

    run(one)


def run(one: Callable[[random.Random], None]) -> None:
    """Rounds until the time is over; each failure names its seed."""
    for seed in seeds():
        started = time.monotonic()
        try:
            one(random.Random(seed))
            elapsed = time.monotonic() - started
            assert elapsed < ROUND_LIMIT_S, f"the round took {elapsed:.1f} s"
        except BaseException as error:
            error.add_note(f"reproduce: ESKER_SOAK_SEED={seed} pytest -m soak {__file__}")
            raise


def seeds() -> Iterator[int]:
    if SEED is not None:
        yield int(SEED)
        return
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        yield int.from_bytes(os.urandom(6))


def operate(model: LogAndModel, rng: random.Random) -> None:
    match rng.randrange(14):
        case 0 | 1 | 2 | 3 | 4:
            model.append(rng.randrange(1, 3), rng.choice([50, 120, 300]))
        case 5 | 6 | 7:
            model.flush()
        case 8:
            model.next_epoch()
        case 9:
            model.pass_time(rng.choice([400, 1100]))
        case 10:
            model.truncate(rng.random())
        case 11:
            model.drop_prefix(rng.random())
        case 12:
            model.record()
        case _ if rng.random() < 0.3:
            model.reset(rng.randrange(1, 9))
        case _:
            model.restart()


# --- files to damage ------------------------------------------------------------------------------


def our_files() -> dict[str, bytes]:
    disk = SimulatedDisk()
    log = Log.create(disk, DIRECTORY, CONFIG)
    for i in range(40):
        base, epoch = log.log_end_offset, 1 + i // 9
        if i % 9 == 0:
            controls = [
                (ControlType.LEADER_CHANGE, bytes(20)),
                (ControlType.KRAFT_VERSION, b"\0\0"),
            ]
            data = build_control_batch(controls, base_offset=base, leader_epoch=epoch, timestamp=i)
        else:
            records = [(None, b"value " * 9, i, [("h", b"x")] * (j % 3)) for j in range(1 + i % 4)]
            codec = Compression(i % 5)
            data = build_batch(records, base_offset=base, leader_epoch=epoch, compression=codec)
        log.append(data)
    log.flush()
    log.record_recovery_point()
    return {name: disk.content(DIRECTORY / name) for name in disk.listdir(DIRECTORY)}


def recorded_files(directory: Path) -> dict[str, bytes]:
    files = {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}
    files["meta.properties"] = (directory.parent / "meta.properties").read_bytes()
    return files


def mutated(files: dict[str, bytes], rng: random.Random) -> dict[str, bytes]:
    files = dict(files)
    for _ in range(rng.randrange(1, 7)):
        name = rng.choice(sorted(files))
        content = bytearray(files[name])
        at = rng.randrange(len(content) + 1)
        match rng.randrange(8):
            case 0:
                del content[at:]
            case 1 | 2 if at < len(content):
                content[at] ^= 1 << rng.randrange(8)
            case 3:
                piece = rng.choice(INTERESTING)
                content[at : at + len(piece)] = piece
            case 4:
                content[at:at] = rng.randbytes(rng.randrange(1, 100))
            case 5:
                start = rng.randrange(len(content) + 1)
                content[at:at] = content[start : start + rng.randrange(1, 300)]
            case 6:
                del content[at : at + rng.randrange(1, 100)]
            case _ if rng.random() < 0.2:
                del files[name]
                if not files:
                    break
                continue
            case _:
                content = bytearray(files[rng.choice(sorted(files))])
        files[name] = bytes(content)
    return files


def read_small_files(disk: SimulatedDisk) -> None:
    for read in (read_meta_properties, read_partition_metadata, read_quorum_state):
        with suppress(RecordError, FileNotFoundError):
            read(disk, DIRECTORY)


def read_log(disk: SimulatedDisk) -> None:
    log = Log.open(disk, DIRECTORY, CONFIG)
    offset = log.log_start_offset
    while records := log.read(offset, max_bytes=700):
        assert records.base_offset <= offset < records.end_offset, f"no progress at {offset}"
        for batch in records.batches:
            with suppress(RecordError):
                for record in iter_records(batch, limit_bytes=DECOMPRESSED_LIMIT_BYTES):
                    assert record.offset >= batch.header.base_offset
        offset = records.end_offset
    assert offset == log.log_end_offset
    for epoch, start in log.epochs:
        assert log.end_offset_for_epoch(epoch) is not None
        assert log.epoch_at(start) == epoch
    log.close()


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
