"""The text files beside a log, byte by byte as Kafka writes them, and refused when damaged."""

from __future__ import annotations

import random
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft.segments.epochs import (
    EPOCHS_FILE,
    Epochs,
    EpochStart,
    read_epochs,
    write_epochs,
)
from raft.segments.errors import CorruptFileError
from raft.segments.properties import (
    MetaProperties,
    QuorumState,
    read_meta_properties,
    read_partition_metadata,
    read_quorum_state,
    write_meta_properties,
    write_partition_metadata,
    write_quorum_state,
)
from raft.segments.recovery_point import (
    RECOVERY_POINT_FILE,
    SLOT_BYTES,
    LogState,
    RecoveryPointFile,
)
from tests.examples import seeds
from tests.simulation.disk import PowerLoss, SimulatedDisk

ROOT = Path("/data")
METADATA_TOPIC_ID = UUID(int=1)


@pytest.fixture
def disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_directory(ROOT)
    return disk


# --- leader-epoch-checkpoint ----------------------------------------------------------------------


def test_the_leader_epoch_checkpoint_has_its_golden_bytes(disk):
    entries = [EpochStart(1, 0), EpochStart(5, 1234)]
    write_epochs(disk, ROOT, entries)
    assert disk.content(ROOT / EPOCHS_FILE) == (
        b"0\n"  # version
        b"2\n"  # entries
        b"1 0\n"  # epoch, its first offset
        b"5 1234\n"
    )
    assert read_epochs(disk, ROOT) == entries


def test_reading_a_missing_leader_epoch_checkpoint_returns_no_epochs(disk):
    assert read_epochs(disk, ROOT) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1\n0\n",
        "0\n",
        "0\n1\n",
        "0\n0\n1 0\n",
        "0\n1\n1\n",
        "0\n1\n1 0 0\n",
        "0\n1\n-1 0\n",
        "0\n1\nx 0\n",
        "0\n1\n1 ²\n",
        "0\n2\n2 0\n1 5\n",
        "0\n2\n1 5\n2 5\n",
        "0\n1\n2147483648 0\n",
        "0\n1\n1 9223372036854775808\n",
        "0\n1\n1 " + "9" * 5000 + "\n",
        "\0\0\0\0",
    ],
)
def test_reading_a_malformed_leader_epoch_checkpoint_raises_an_error(disk, text):
    disk.replace(ROOT / EPOCHS_FILE, text.encode())
    with pytest.raises(CorruptFileError) as caught:
        read_epochs(disk, ROOT)
    assert caught.value.path == ROOT / EPOCHS_FILE


EPOCH_OF_OFFSET = st.lists(st.integers(0, 6), min_size=1, max_size=30).map(sorted)


@given(epoch_of=EPOCH_OF_OFFSET, asked=st.integers(-1, 8))
def test_the_epoch_cache_returns_the_end_offset_of_the_greatest_epoch_up_to_a_given_epoch(
    epoch_of, asked
):
    """KIP-595, Fetch: the greatest epoch not later than the one asked for, and its end."""
    epochs = Epochs()
    for offset, epoch in enumerate(epoch_of):
        epochs.assign(epoch, offset)
    found = epochs.end_offset(asked, log_end_offset=len(epoch_of))
    older = [offset for offset, epoch in enumerate(epoch_of) if epoch <= asked]
    if older:
        assert found == (older[-1] + 1, epoch_of[older[-1]])
    else:
        assert found is None


@given(epoch_of=EPOCH_OF_OFFSET, data=st.data())
def test_the_epoch_cache_drops_entries_when_the_log_is_truncated_at_either_end(epoch_of, data):
    epochs = Epochs()
    for offset, epoch in enumerate(epoch_of):
        epochs.assign(epoch, offset)
    start = data.draw(st.integers(0, len(epoch_of) - 1))
    end = data.draw(st.integers(start + 1, len(epoch_of)))
    epochs.drop_before(start)
    epochs.truncate_to(end)
    for offset in range(start, end):
        assert epochs.epoch_at(offset) == epoch_of[offset]
    assert epochs.epoch_at(start - 1) is None
    assert epochs.last == epoch_of[end - 1]
    assert epochs.entries[0].start_offset == start


# --- partition.metadata, meta.properties ----------------------------------------------------------


def test_the_partition_metadata_file_has_its_golden_bytes(disk):
    write_partition_metadata(disk, ROOT, METADATA_TOPIC_ID)
    assert disk.content(ROOT / "partition.metadata") == (
        b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"  # no line end, as upstream
    )
    assert read_partition_metadata(disk, ROOT) == METADATA_TOPIC_ID


@pytest.mark.parametrize("text", ["", "version: 1\ntopic_id: AA", "version: 0\ntopic_id: AAA"])
def test_reading_malformed_partition_metadata_raises_an_error(disk, text):
    disk.replace(ROOT / "partition.metadata", text.encode())
    with pytest.raises(CorruptFileError):
        read_partition_metadata(disk, ROOT)


def test_the_meta_properties_file_has_its_golden_bytes(disk):
    meta = MetaProperties(
        cluster_id="8TY_nVm5SQm0rIZu0fbEjA", node_id=3, directory_id=METADATA_TOPIC_ID
    )
    write_meta_properties(disk, ROOT, meta)
    assert disk.content(ROOT / "meta.properties") == (
        b"#\n"
        b"version=1\n"
        b"cluster.id=8TY_nVm5SQm0rIZu0fbEjA\n"
        b"node.id=3\n"
        b"directory.id=AAAAAAAAAAAAAAAAAAAAAQ\n"
    )
    assert read_meta_properties(disk, ROOT) == meta


def test_the_reader_of_meta_properties_parses_escaped_java_properties(disk):
    text = "#\n#Sat Nov 21 03:00:00 UTC 2026\ncluster.id=a\\:b\\=\nnode.id=1\nversion=1\nx=y\n"
    disk.replace(ROOT / "meta.properties", text.encode())
    assert read_meta_properties(disk, ROOT) == MetaProperties(cluster_id="a:b=", node_id=1)


def test_in_version_0_of_meta_properties_the_node_id_has_the_key_broker_id(disk):
    disk.replace(ROOT / "meta.properties", b"version=0\nbroker.id=4\ncluster.id=c\n")
    assert read_meta_properties(disk, ROOT).node_id == 4


@pytest.mark.parametrize(
    "text",
    [
        "",
        "version=2\nnode.id=1\ncluster.id=c\n",
        "version=1\nnode.id=x\ncluster.id=c\n",
        "version=1\nnode.id=99999999999\ncluster.id=c\n",
        "version=1\nnode.id=1\n",
        "version=1\nnode.id=1\ncluster.id=c\ndirectory.id=zzz\n",
        f"version=1\ncluster.id=a\nnode.id={'9' * 5000}\n",  # more digits than int() takes
        "version\n",
        "\x00\ufffd",
    ],
)
def test_reading_meta_properties_with_missing_or_invalid_values_raises_an_error(disk, text):
    disk.replace(ROOT / "meta.properties", text.encode())
    with pytest.raises(CorruptFileError):
        read_meta_properties(disk, ROOT)


# --- quorum-state ---------------------------------------------------------------------------------


def test_the_quorum_state_file_of_version_0_has_its_golden_bytes(disk):
    state = QuorumState(epoch=5, voted_id=2, voters=(1, 2, 3))
    write_quorum_state(disk, ROOT, state)
    assert disk.content(ROOT / "quorum-state") == (
        b'{"clusterId":"","leaderId":-1,"leaderEpoch":5,"votedId":2,"appliedOffset":0,'
        b'"currentVoters":[{"voterId":1},{"voterId":2},{"voterId":3}],"data_version":0}'
    )
    assert read_quorum_state(disk, ROOT) == state


def test_the_quorum_state_file_of_version_1_has_its_golden_bytes(disk):
    state = QuorumState(epoch=5, leader_id=1, voted_id=1, voted_directory_id=UUID(int=1))
    write_quorum_state(disk, ROOT, state, version=1)
    assert disk.content(ROOT / "quorum-state") == (
        b'{"leaderId":1,"leaderEpoch":5,"votedId":1,'
        b'"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAQ","data_version":1}'
    )
    assert read_quorum_state(disk, ROOT) == state


def test_reading_a_missing_quorum_state_file_returns_no_election_state(disk):
    assert read_quorum_state(disk, ROOT) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        "[" * 100_000,
        '{"leaderId":1,"leaderEpoch":5,"votedId":1,"data_version":2}',
        '{"leaderId":1,"votedId":1,"data_version":0}',
        '{"leaderId":1,"leaderEpoch":"5","votedId":1,"data_version":0}',
        '{"leaderId":1,"leaderEpoch":true,"votedId":1,"data_version":0}',
        '{"leaderId":1,"leaderEpoch":4294967296,"votedId":1,"data_version":0}',
        '{"leaderId":-2,"leaderEpoch":5,"votedId":1,"data_version":0}',
        '{"leaderId":1,"leaderEpoch":5,"votedId":1,"currentVoters":[1],"data_version":0}',
        '{"leaderId":1,"leaderEpoch":5,"votedId":1,"votedDirectoryId":7,"data_version":1}',
        '{"leaderId":1,"leaderEpoch":5,"votedId":1,"votedDirectoryId":"?","data_version":1}',
    ],
)
def test_an_unreadable_quorum_state_file_stops_the_node(disk, text):
    disk.replace(ROOT / "quorum-state", text.encode())
    with pytest.raises(CorruptFileError):
        read_quorum_state(disk, ROOT)


@pytest.mark.parametrize("epoch", [-1, 2**31, 2**40])
def test_an_election_state_with_an_epoch_out_of_range_can_be_neither_read_nor_written(disk, epoch):
    """Voters that were told an epoch near 2^31 once wrote the one after it."""
    text = f'{{"leaderId":-1,"leaderEpoch":{epoch},"votedId":1,"data_version":0}}'
    disk.replace(ROOT / "quorum-state", text.encode())
    with pytest.raises(CorruptFileError, match=rf"quorum-state: .*leaderEpoch {epoch} is outside"):
        read_quorum_state(disk, ROOT)
    with pytest.raises(AssertionError, match="no node could start again"):
        write_quorum_state(disk, ROOT, QuorumState(epoch=epoch))


def test_an_election_state_with_the_last_possible_epoch_can_be_read_and_written(disk):
    write_quorum_state(disk, ROOT, QuorumState(epoch=2**31 - 1))
    assert read_quorum_state(disk, ROOT) == QuorumState(epoch=2**31 - 1)


@pytest.mark.parametrize("seed", seeds(30))
def test_a_vote_that_was_written_survives_a_power_loss(disk, seed):
    rng = random.Random(seed)
    old, new = QuorumState(epoch=1, voters=(1,)), QuorumState(epoch=2, voted_id=1, voters=(1,))
    write_quorum_state(disk, ROOT, old)
    disk.power_loss_at = disk.steps + seed % 6
    try:
        write_quorum_state(disk, ROOT, new)
        expected = {new}
    except PowerLoss:
        expected = {old, new}
    disk.crash(rng)
    assert read_quorum_state(disk, ROOT) in expected


# --- recovery-point -------------------------------------------------------------------------------


def test_the_recovery_point_file_has_its_golden_bytes(disk):
    file = RecoveryPointFile.create(disk, ROOT, LogState(5, 9))
    file.write(LogState(5, 12, resetting=True, floor=11))
    content = disk.content(ROOT / RECOVERY_POINT_FILE)
    assert len(content) == 2 * SLOT_BYTES
    newest = b"esker-recovery-point v1 seq=2 log_start=5 recovery_point=12 floor=11 resetting=1"
    assert content[:SLOT_BYTES].split(b"\n")[0] == newest + b" crc=d74f379f"
    assert (
        content[SLOT_BYTES:]
        .split(b"\n")[0]
        .startswith(
            b"esker-recovery-point v1 seq=1 log_start=5 recovery_point=9 floor=0 resetting=0 crc="
        )
    )
    assert content[SLOT_BYTES - 1] == ord("\n")


def test_a_recovery_point_file_of_version_0_keeps_its_version_until_floors_are_allowed(disk):
    """Esker 0.1 reads no other version, and a node may go back to it until then."""
    line = b"esker-recovery-point v0 seq=2 log_start=5 recovery_point=12 resetting=1 crc=d8fa3121"
    disk.replace(
        ROOT / RECOVERY_POINT_FILE, line + b"\n" + b" " * (SLOT_BYTES - len(line) - 2) + b"\n"
    )
    file = RecoveryPointFile.open(disk, ROOT)
    assert file.state == LogState(5, 12, resetting=True, floor=0)
    file.write(LogState(5, 13))
    opened = b"esker-recovery-point v0 seq=3 log_start=5 recovery_point=12 resetting=1 crc="
    newest = b"esker-recovery-point v0 seq=4 log_start=5 recovery_point=13 resetting=0 crc="
    content = disk.content(ROOT / RECOVERY_POINT_FILE)
    assert content[:SLOT_BYTES].startswith(newest)
    assert content[SLOT_BYTES:].startswith(opened)
    with pytest.raises(AssertionError, match="no field for the floor"):
        file.write(LogState(5, 13, floor=12))
    file.allow_floor()
    file.write(LogState(5, 13, floor=12))
    assert RecoveryPointFile.open(disk, ROOT).state.floor == 12


def test_the_reader_of_the_recovery_point_takes_the_newest_valid_slot(disk):
    file = RecoveryPointFile.create(disk, ROOT, LogState(0, 0))
    for point in range(1, 6):
        file.write(LogState(0, point))
        assert RecoveryPointFile.open(disk, ROOT).state == LogState(0, point)
    disk.flip_bit(ROOT / RECOVERY_POINT_FILE, 45)
    disk.flip_bit(ROOT / RECOVERY_POINT_FILE, SLOT_BYTES + 500)
    with pytest.raises(CorruptFileError, match="neither slot"):
        RecoveryPointFile.open(disk, ROOT)


@pytest.mark.parametrize("seed", seeds(30))
def test_a_power_loss_during_a_recovery_point_write_leaves_the_old_or_the_new_value(disk, seed):
    file = RecoveryPointFile.create(disk, ROOT, LogState(0, 7))
    disk.fsync_directory(ROOT)
    file.write(LogState(0, 8))
    disk.power_loss_at = disk.steps + seed % 2
    with pytest.raises(PowerLoss):
        file.write(LogState(0, 3))
    disk.crash(random.Random(seed))
    assert RecoveryPointFile.open(disk, ROOT).state.recovery_point in {8, 3}
