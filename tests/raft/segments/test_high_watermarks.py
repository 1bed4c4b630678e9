"""How much is committed stands in Kafka's own file, byte by byte, and survives a power loss."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from raft.driver.high_watermarks import HighWatermarks
from raft.segments.errors import CorruptFileError
from raft.segments.files import Mode, RealFileSystem
from raft.segments.high_watermarks import (
    HIGH_WATERMARKS_FILE,
    read_high_watermarks,
    write_high_watermarks,
)
from raft.wire.responses import Group
from records.types import Offset
from tests.simulation.disk import SimulatedDisk
from tests.waiting import wait_until_async

ROOT = Path("/data")
OFFSETS = {("__cluster_metadata", 0): 8121, ("__diskless-metadata", 12): 1 << 59}
TEXT = "0\n2\n__cluster_metadata 0 8121\n__diskless-metadata 12 576460752303423488\n"


def test_the_high_watermark_file_is_durable_and_has_kafkas_format() -> None:
    disk = SimulatedDisk()
    disk.make_directory(ROOT)
    write_high_watermarks(disk, ROOT, {("__cluster_metadata", 0): 1})
    write_high_watermarks(disk, ROOT, OFFSETS)
    disk.crash(random.Random(1))
    file = disk.open(ROOT / HIGH_WATERMARKS_FILE, Mode.READ)
    assert file.read(0, 1_000) == TEXT.encode()
    file.close()
    assert read_high_watermarks(disk, ROOT) == OFFSETS


DAMAGED = {
    "empty": b"",
    "of a later version": b"1\n0\n",
    "without a count": b"0\n",
    "shorter than it says": b"0\n2\na 0 1\n",
    "longer than it says": b"0\n1\na 0 1\nb 0 1\n",
    "without an offset": b"0\n1\na 0\n",
    "below zero": b"0\n1\na 0 -1\n",
    "beyond int64": b"0\n1\na 0 9999999999999999999\n",
    "of a partition that is no number": b"0\n1\na b 1\n",
    "no text": b"0\n1\n\xff\n",
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=list(DAMAGED))
def test_reading_a_damaged_high_watermark_file_raises_an_error(tmp_path: Path, data: bytes) -> None:
    (tmp_path / HIGH_WATERMARKS_FILE).write_bytes(data)
    with pytest.raises(CorruptFileError):
        read_high_watermarks(RealFileSystem(), tmp_path)


class Led:
    """A group whose leader has told, or not yet."""

    def __init__(self, topic: str, high_watermark: int | None) -> None:
        self.group = Group(topic, 0, UUID(int=1))
        self.high_watermark: Any = None if high_watermark is None else Offset(high_watermark)


def test_a_node_keeps_high_watermarks_written_before_its_restart(tmp_path: Path) -> None:
    files = RealFileSystem()
    path = tmp_path / HIGH_WATERMARKS_FILE

    async def live(*groups: Led) -> None:
        marks = HighWatermarks(files, tmp_path, every_s=0.001)
        marks.start(groups)
        await wait_until_async(path.exists, f"{path} is written")
        groups[0].high_watermark = Offset(12)
        await marks.close()

    asyncio.run(live(Led("a", 10), Led("b", 5), Led("c", None)))
    assert read_high_watermarks(files, tmp_path) == {("a", 0): 12, ("b", 0): 5}
    before = path.stat().st_ino
    asyncio.run(live(Led("a", 12), Led("b", None)))
    assert path.stat().st_ino == before  # no news, not written
    asyncio.run(live(Led("b", 6), Led("a", None)))
    assert read_high_watermarks(files, tmp_path) == {("b", 0): 12, ("a", 0): 12}


def test_a_node_that_cannot_write_its_high_watermarks_keeps_running(tmp_path: Path) -> None:
    async def live() -> None:
        marks = HighWatermarks(RealFileSystem(), tmp_path / "gone")
        marks.start([Led("a", 1)])
        await marks.write()
        await marks.close()

    asyncio.run(live())
