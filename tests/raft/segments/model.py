"""A log on the simulated disk beside a list of batches: what must be there after a power loss.

Every batch ever appended has bytes of its own, so a batch that comes back from the dead is seen.
The list changes with every operation that returned; one that the power cut short may be found done,
not done, or half done, and `allowed` says what that leaves.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from raft.segments import EpochStart, Log, LogConfig
from records.batch_writer import build_value_batch
from records.types import Epoch, Offset
from tests.simulation.disk import PowerLoss, SimulatedDisk

DIRECTORY = Path("/data/__cluster_metadata-0")
CONFIG = LogConfig(segment_bytes=500, index_interval_bytes=90, recovery_point_interval_ms=1000)


class Stored(NamedTuple):
    base_offset: int
    end_offset: int
    epoch: int
    data: bytes


@dataclass(frozen=True)
class Contents:
    """What a log may hold: a prefix of `batches` that reaches `at_least`, from `start` on."""

    start: int
    batches: tuple[Stored, ...]
    at_least: int

    @property
    def end_offset(self) -> int:
        return self.batches[-1].end_offset if self.batches else self.start


class LogAndModel:
    """The two, kept in step."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.now_ms = 0.0
        self.serial = 0
        self.epoch = 1
        self.contents = Contents(0, (), 0)
        self.allowed = [self.contents]
        self.log = Log.create(disk, DIRECTORY, CONFIG, clock=self._clock)

    def _clock(self) -> float:
        return self.now_ms / 1000

    # --- operations: each first says what a crash inside it may leave ---------------------------

    def append(self, records: int, size: int) -> None:
        self.serial += 1
        base = self.contents.end_offset
        value = b"%d." % self.serial
        data = bytes(
            build_value_batch(
                [value.ljust(size, b"x")] * records,
                base_offset=base,
                leader_epoch=self.epoch,
                timestamp=self.serial,
            )
        )
        old = self.contents
        new = Contents(
            old.start,
            (*old.batches, Stored(base, base + records, self.epoch, data)),
            old.at_least,
        )
        self.allowed = [new]
        self.log.append(data)
        self._becomes(new)

    def flush(self) -> None:
        end = self.log.flush()
        assert end == self.log.log_end_offset == self.contents.end_offset
        self._becomes(Contents(self.contents.start, self.contents.batches, end))

    def next_epoch(self) -> None:
        self.epoch += 1

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms

    def record(self) -> None:
        self.log.record_recovery_point()

    def truncate(self, fraction: float) -> None:
        old = self.contents
        keep = tuple(old.batches[: round(fraction * len(old.batches))])
        if not any(batch.end_offset > old.start for batch in keep):
            keep = ()  # nothing readable stays: the log is empty from its start on
        end = keep[-1].end_offset if keep else old.start
        new = Contents(old.start, keep, min(old.at_least, end))
        self.allowed = [Contents(old.start, old.batches, new.at_least)]
        assert self.log.truncate_to(end) == end
        self._becomes(new)

    def drop_prefix(self, fraction: float) -> None:
        old = self.contents
        start = old.start + round(fraction * (old.at_least - old.start))
        new = Contents(start, old.batches, old.at_least)
        self.allowed = [old, new]
        self.log.drop_prefix(Offset(start))
        self._becomes(new)

    def reset(self, distance: int) -> None:
        start = self.contents.end_offset + distance
        new = Contents(start, (), start)
        self.allowed = [self.contents, new]
        self.log.reset_to(Offset(start))
        self._becomes(new)

    def restart(self) -> None:
        """A clean stop and start: everything is flushed."""
        self.allowed = [self.contents]
        self.log.close()
        self._becomes(
            Contents(self.contents.start, self.contents.batches, self.contents.end_offset)
        )
        self.log = Log.open(self.disk, DIRECTORY, CONFIG, clock=self._clock)
        self.check(self.allowed)

    def _becomes(self, contents: Contents) -> None:
        self.contents = contents
        self.allowed = [contents]
        assert self.log.log_start_offset == contents.start
        assert self.log.log_end_offset == contents.end_offset
        assert self.log.flushed_end_offset == contents.at_least
        assert self.log.recovery_point <= self.log.flushed_end_offset

    # --- crashing ------------------------------------------------------------------------------

    def crash_and_recover(self, rng: random.Random, *, crashes_while_opening: int = 0) -> None:
        """Lose power, perhaps again while opening; then compare what is there with `allowed`."""
        for _ in range(crashes_while_opening):
            self.disk.crash(rng)
            self.disk.power_loss_at = self.disk.steps + rng.randrange(12)
            try:
                self.log = Log.open(self.disk, DIRECTORY, CONFIG, clock=self._clock)
            except PowerLoss:
                continue
            self.check(self.allowed)
        self.disk.crash(rng)
        self.log = Log.open(self.disk, DIRECTORY, CONFIG, clock=self._clock)
        self.check(self.allowed)

    def check(self, allowed: list[Contents]) -> None:
        """The log is one of those; the model becomes it, all of it durable."""
        log = self.log
        batches = tuple(self.read_all())
        found = Contents(log.log_start_offset, batches, log.log_end_offset)
        assert any(_explains(contents, found) for contents in allowed), (
            f"recovered {found.start}..{found.end_offset}, allowed: "
            + ", ".join(f"{c.start}..{c.at_least}..{c.end_offset}" for c in allowed)
        )
        assert log.flushed_end_offset == log.log_end_offset == log.recovery_point
        if batches:
            assert log.epochs == _epochs(found), "the epoch checkpoint disagrees with the log"
        else:  # the epoch of the last record may be remembered, though the record is gone
            assert all(entry.start_offset == found.start for entry in log.epochs)
        self.epoch = max(self.epoch, log.last_epoch or 0)
        self.check_indexes()
        self._becomes(Contents(found.start, batches, log.log_end_offset))

    def check_indexes(self) -> None:
        """Every entry of every index names a batch that is there, and says the truth about it."""
        for segment in self.log._segments:
            positions: dict[int, int] = {}
            newest = -1
            position = 0
            truths = set()
            while position < segment.size_bytes:
                header = segment.header_at(position)
                positions[header.last_offset] = position
                if header.max_timestamp > newest:
                    newest = header.max_timestamp
                    truths.add((newest, header.last_offset))
                position += header.size_bytes
            offsets = [segment.offset_index.entry(i) for i in range(len(segment.offset_index))]
            times = [segment.time_index.entry(i) for i in range(len(segment.time_index))]
            assert all(positions.get(offset) == at for offset, at in offsets), offsets
            assert set(times) <= truths, f"{times} of {truths}"
            assert times == sorted(times)

    def read_all(self) -> list[Stored]:
        """Every readable batch, through `read`."""
        found: list[Stored] = []
        offset = self.log.log_start_offset
        while records := self.log.read(offset, max_bytes=200):
            for batch in records.batches:
                header = batch.header
                found.append(
                    Stored(
                        header.base_offset,
                        header.end_offset,
                        header.leader_epoch,
                        bytes(batch.view),
                    )
                )
            offset = records.end_offset
        return found


def _explains(contents: Contents, found: Contents) -> bool:
    readable = tuple(batch for batch in contents.batches if batch.end_offset > contents.start)
    return (
        contents.start == found.start
        and found.batches == readable[: len(found.batches)]
        and found.end_offset >= contents.at_least
    )


def _epochs(contents: Contents) -> tuple[EpochStart, ...]:
    """What the epochs should be, from the batches alone."""
    entries: list[EpochStart] = []
    for batch in contents.batches:
        if not entries or entries[-1].epoch != batch.epoch:
            start = Offset(max(batch.base_offset, contents.start))
            entries.append(EpochStart(Epoch(batch.epoch), start))
    return tuple(entries)
