"""The files that a group's directory must have before its node may vote.

Source: docs/design/quorum.md#lost-disks.
"""

from uuid import UUID

import pytest

from raft.core.epoch_budget import BUDGET
from raft.core.roles import ElectionState
from raft.driver.errors import LostDiskError
from raft.driver.storage import Storage
from raft.segments.errors import CorruptFileError
from raft.segments.files import RealFileSystem
from raft.segments.log import LogConfig
from raft.segments.properties import QUORUM_STATE_FILE
from raft.wire.responses import Group
from records.batch_writer import build_value_batch
from records.types import Epoch, NodeId, Offset

GROUP = Group("group", 0, UUID(int=5))
FILES = RealFileSystem()


def opened(log_dir) -> Storage:
    return Storage.open(FILES, log_dir, GROUP, LogConfig(), (NodeId(1),))


def test_a_new_raft_group_stores_an_election_state_without_a_vote(tmp_path):
    Storage.create(FILES, tmp_path, GROUP, LogConfig(), recovering=False)
    storage = opened(tmp_path)
    assert storage.election_state() == ElectionState(epoch=Epoch(0))
    storage.close()


def write_log(storage: Storage, epoch: int) -> None:
    data = build_value_batch([b"x"], base_offset=0, leader_epoch=epoch, timestamp=0)
    storage.append(bytearray(data), Offset(0), Offset(1))
    storage.close()


def test_a_node_refuses_a_log_with_an_epoch_far_above_the_election_state_as_damaged(tmp_path):
    """A batch's epoch is outside its checksum: one damaged bit would become the quorum's epoch."""
    Storage.create(FILES, tmp_path, GROUP, LogConfig(), recovering=False)
    write_log(opened(tmp_path), 1 << 30)
    storage = opened(tmp_path)
    with pytest.raises(CorruptFileError, match=r"quorum-state: leaderEpoch 0, .* epoch 1073741824"):
        storage.election_state()
    storage.close()


def test_a_node_accepts_a_log_with_an_epoch_slightly_above_the_election_state(tmp_path):
    """Kafka, too, takes the later of the two."""
    Storage.create(FILES, tmp_path, GROUP, LogConfig(), recovering=False)
    write_log(opened(tmp_path), BUDGET)
    storage = opened(tmp_path)
    assert storage.election_state() == ElectionState(epoch=Epoch(0))
    storage.close()


def test_a_node_reports_a_raft_group_without_its_election_state_as_a_lost_disk(tmp_path):
    Storage.create(FILES, tmp_path, GROUP, LogConfig(), recovering=False)
    (tmp_path / GROUP.name / QUORUM_STATE_FILE).unlink()
    storage = opened(tmp_path)
    with pytest.raises(LostDiskError, match="quorum-state"):
        storage.election_state()
    storage.close()
