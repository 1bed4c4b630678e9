"""Disks for the tests of this room, taken down again whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nemesis.disks import Disks, NoMounts


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Disks]:
    """Skips where nothing can be mounted: power loss and full disks are then NOT tested."""
    try:
        made = Disks(tmp_path / "disks")
    except NoMounts as error:
        pytest.skip(f"NOT TESTED HERE, needs mkfs.ext4 and the right to mount: {error}")
    try:
        yield made
    finally:
        made.close()
