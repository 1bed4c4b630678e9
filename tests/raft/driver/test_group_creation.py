"""A crash while a group's directory is made: the next start begins it again."""

from __future__ import annotations

from pathlib import Path

import pytest

from raft.driver.storage import RECOVERING_FILE, Storage
from raft.segments.files import RealFileSystem
from raft.segments.log import Log, LogConfig
from raft.segments.properties import write_partition_metadata
from raft.wire.responses import Group
from records.batch_writer import build_value_batch
from records.types import METADATA_TOPIC_ID

FILES = RealFileSystem()
GROUP = Group("__cluster_metadata", 0, METADATA_TOPIC_ID)
CONFIG = LogConfig()
STEPS = ("directory", "mark", "metadata", "log")


def make(log_dir: Path, last_step: str) -> None:
    """What `Storage.create` has done when it ends after this step."""
    directory = log_dir / GROUP.name
    for step in STEPS[: STEPS.index(last_step) + 1]:
        match step:
            case "directory":
                directory.mkdir()
            case "mark":
                (directory / RECOVERING_FILE).touch()
            case "metadata":
                write_partition_metadata(FILES, directory, GROUP.topic_id)
            case "log":
                Log.create(FILES, directory, CONFIG).close()


@pytest.mark.parametrize("last_step", STEPS)
def test_a_node_creates_a_raft_group_again_whose_creation_was_interrupted(
    tmp_path: Path, last_step: str
) -> None:
    make(tmp_path, last_step)
    assert not Storage.has_batches(FILES, tmp_path, GROUP)
    Storage.create(FILES, tmp_path, GROUP, CONFIG, recovering=True)
    storage = Storage.open(FILES, tmp_path, GROUP, CONFIG, ())
    assert storage.recovering
    assert storage.log_state().end_offset == 0
    storage.close()


def test_a_raft_groups_storage_reports_batches_only_if_the_groups_log_has_batches(
    tmp_path: Path,
) -> None:
    assert not Storage.has_batches(FILES, tmp_path, GROUP)
    Storage.create(FILES, tmp_path, GROUP, CONFIG, recovering=False)
    log = Log.open(FILES, tmp_path / GROUP.name, CONFIG)
    log.append(build_value_batch([b"x"], base_offset=0, leader_epoch=1, timestamp=0))
    log.close()
    assert Storage.has_batches(FILES, tmp_path, GROUP)
