"""A machine is loaded, fed and checkpointed, whatever happens around it.

Source: docs/design/snapshots.md, docs/design/state-machines.md#decide-and-apply; invariant 4
(docs/design/invariants.md).
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace

import pytest
from crc32c import crc32c
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from raft.interfaces import Draft
from records.batch import iter_batches, iter_records
from records.batch_writer import build_batch, stamp
from records.compression import Buffer, Compression
from records.control import SnapshotFooterRecord
from records.errors import UnknownRecordError
from records.types import Offset, OffsetAndEpoch
from snapshot import CheckpointWriter, PartFile, verify_checkpoint
from snapshot.errors import DamagedFileError
from snapshot.generation import Pace
from snapshot.kv import KeyValueMachine
from snapshot.policy import SnapshotSettings
from snapshot.scheduling import NotHostedError
from tests.doubles.memory_log import MemoryLog, SilentTicket, _Stored
from tests.snapshot.checkpoints import control_batch
from tests.snapshot.machines import DIRECTORY, SMALL_STEPS, Hosted, replayed

MANY = [(b"key-%d" % i, b"value-%d" % i) for i in range(40)]


def test_the_state_machine_host_applies_committed_records_in_log_order():
    node = Hosted()
    node.write((b"a", b"1"), (b"b", b"2"))
    node.write((b"a", None), (None, b"nobody's"), (b"c", b""))
    node.loop.settle()
    machine = node.machine
    assert [machine.get(key) for key in (b"a", b"b", b"c")] == [None, b"2", b""]
    assert (machine.applied, len(machine)) == ((6, 1), 2)  # with the LeaderChange record
    assert (machine.changed_records, machine.keyless_records) == (1, 1)


def test_a_restarted_state_machine_host_restores_the_state_from_checkpoint_and_log():
    """Invariant 4."""
    node = Hosted()
    node.write(*MANY)
    taken = node.take()
    assert taken == node.machine.applied
    node.write((b"key-3", None), (b"key-1", b"new"), (b"key-3", b"again"))
    node.restart()
    node.loop.settle()
    assert node.host.loaded == 1
    assert (node.machine.get(b"key-1"), node.machine.get(b"key-3")) == (b"new", b"again")
    again = node.take()
    assert node.content(again) == replayed_content(node.log._stored, again)


def replayed_content(history: list[_Stored], at: OffsetAndEpoch) -> bytes:
    fresh = replayed(history, at.offset)
    assert fresh.take() == at
    return fresh.content()


def test_a_checkpoint_holds_the_state_at_the_time_of_its_freeze():
    """The machine goes on meanwhile: changes, deletions, keys that come back."""
    node = Hosted()
    node.write(*[(b"key-%d" % i, b"value-%d" % i) for i in range(1_000)])
    node.loop.settle()
    answers: list[OffsetAndEpoch | Exception] = []
    node.host.take_now(answers.append)
    for i in range(25):
        node.loop.turn(disk=i % 3 == 0)
        node.write((b"key-%d" % (i % 7), None if i % 2 else b"x"), (b"new-%d" % i, b"y"))
    assert node.host.generation is not None, "all of this was to be beside a generation"
    node.loop.settle()
    (taken,) = answers
    assert isinstance(taken, OffsetAndEpoch)
    assert node.content(taken) == replayed_content(node.log._stored, taken)
    later = node.take()
    assert node.content(later) == replayed_content(node.log._stored, later)
    assert not node.machine._overlay


def test_the_state_machine_hosts_count_of_changed_records_survives_a_restart():
    node = Hosted()
    node.write(*MANY)
    node.take()
    node.write((b"key-1", b"new"), (b"key-2", None), (b"unknown", None), (b"added", b"1"))
    node.write((b"added", b"2"))
    node.loop.settle()
    before = (node.machine.changed_records, node.host.situation.bytes_since)
    assert before[0] == 3  # an addition is no change, a change of what was added is one
    node.restart()
    node.loop.settle()
    assert (node.machine.changed_records, node.host.situation.bytes_since) == before


def test_records_that_change_during_a_checkpoint_count_towards_the_next_checkpoint():
    node = Hosted()
    node.write(*MANY)
    node.write((b"key-1", b"before"))
    node.loop.settle()
    node.host.take_now(lambda _: None)
    for _ in range(5):
        node.loop.turn()
    assert node.host.generation is not None
    node.write((b"key-1", b"beside"), (b"key-2", None))
    node.loop.settle()
    assert (node.machine.changed_records, node.host.generated) == (2, 1)
    node.restart()
    node.loop.settle()
    assert node.machine.changed_records == 2


def test_the_checkpoint_policy_decides_by_log_bytes_changed_records_and_elapsed_time():
    """Both the ratio and the bytes; then the log is counted from the checkpoint on."""
    node = Hosted(settings=SnapshotSettings(max_bytes_between=900, max_interval_ms=0))
    node.write(*MANY[:10])
    node.loop.settle()
    assert node.store.newest is None
    for i in range(10):
        node.write((b"key-%d" % i, b"new"))
        node.loop.settle()
    assert node.host.generated == 1
    assert node.store.newest is not None
    assert 0 < node.store.newest.offset < node.machine.applied.offset
    since = sum(
        len(one.data) for one in node.log._stored if one.base_offset >= node.store.newest.offset
    )
    assert node.host.situation.bytes_since == since


def test_the_state_machine_host_takes_a_checkpoint_of_an_idle_log_after_the_interval():
    node = Hosted(settings=SnapshotSettings(max_interval_ms=5_000))
    node.write((b"a", b"1"))
    node.loop.pass_time(4_000)
    assert node.host.generated == 0
    node.loop.pass_time(3_000)
    assert node.host.generated == 1
    node.loop.pass_time(20_000)
    assert node.host.generated == 1, "nothing was committed since"


def test_the_state_machine_host_takes_no_checkpoint_of_an_empty_log():
    node = Hosted()
    with pytest.raises(NotHostedError, match="nothing was committed"):
        node.take()


def test_a_checkpoint_request_for_a_state_that_has_a_checkpoint_returns_that_checkpoint():
    node = Hosted()
    node.write(*MANY)
    assert node.take() == node.take()
    assert node.host.generated == 1


def test_a_checkpoint_requested_during_another_checkpoint_holds_all_records_applied_until_then():
    node = Hosted()
    node.write(*MANY)
    node.loop.settle()
    answers: list[OffsetAndEpoch | Exception] = []
    node.host.take_now(answers.append)
    for _ in range(6):
        node.loop.turn()
    assert node.host.generation is not None
    node.write((b"later", b"1"))
    node.host.take_now(answers.append)
    node.loop.settle()
    first, second = answers
    assert isinstance(first, OffsetAndEpoch)
    assert isinstance(second, OffsetAndEpoch)
    assert second.offset == first.offset + 1


@pytest.mark.parametrize("operation", ["create", "write", "fdatasync", "rename"])
def test_a_state_machine_host_keeps_applying_records_after_a_disk_error_during_a_checkpoint(
    operation,
):
    node = Hosted()
    node.write(*MANY)
    node.loop.settle()
    node.disk.fail_next(operation, error=errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        node.take()
    assert node.disk.listdir(DIRECTORY) == []
    node.write((b"more", b"1"))
    assert node.take() == node.machine.applied
    assert node.host.failed == 1


def test_the_state_machine_host_begins_no_checkpoint_without_enough_free_disk_space():
    """It would fill the disk first, and the log beside it has to be written all the while."""
    node = Hosted()
    node.write(*MANY)
    node.take()
    node.write((b"more", b"1"))
    node.loop.settle()
    node.disk.capacity_bytes = node.disk.used_bytes + len(node.content()) - 1
    written: list[PartFile] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartFile, "append", lambda part, _: written.append(part))
        with pytest.raises(OSError, match="No space"):
            node.take()
    assert written == []
    assert len(node.disk.listdir(DIRECTORY)) == 1, "the part stayed"
    node.disk.capacity_bytes = None
    assert node.take() == node.machine.applied


class _Unreadable:
    """A frozen state that ends in the middle, as when the process that scans it is killed."""

    def values(self):
        yield b""
        raise OSError("the scan ended")

    def close(self):
        """Nothing is open."""


def test_a_state_machine_host_keeps_applying_records_after_an_error_of_a_frozen_state(
    monkeypatch, caplog
):
    node = Hosted()
    node.write(*MANY)
    node.loop.settle()
    monkeypatch.setattr(node.machine, "freeze", _Unreadable)
    with pytest.raises(OSError, match="the scan ended"):
        node.take()
    assert "checkpoint=failed" in caplog.text
    assert "the scan ended: tried again in 10 s" in caplog.text
    monkeypatch.undo()
    assert node.loop.failure is None
    assert node.take() == node.machine.applied
    assert node.host.failed == 1


def test_the_checkpoint_policy_waits_before_it_repeats_a_failed_checkpoint():
    node = Hosted(settings=SnapshotSettings(max_interval_ms=1_000))
    node.write(*MANY)
    node.disk.capacity_bytes = 0
    node.loop.pass_time(8_000)
    assert node.host.failed == 1
    node.disk.capacity_bytes = None
    node.loop.pass_time(8_000)
    assert (node.host.failed, node.host.generated) == (1, 1)


class Closed(KeyValueMachine):
    """Inside an open transaction, or not."""

    open = True

    @property
    def checkpointable(self) -> bool:
        return super().checkpointable and not self.open


def test_the_state_machine_host_freezes_no_state_inside_an_open_metadata_transaction():
    """Mutant: a host that does not ask `checkpointable`."""
    node = Hosted(machine=Closed, settings=SnapshotSettings(max_interval_ms=1_000))
    node.write(*MANY)
    answers: list[OffsetAndEpoch | Exception] = []
    node.host.take_now(answers.append)
    node.loop.pass_time(10_000)
    assert (answers, node.host.generated) == ([], 0)
    node.machine.open = False
    node.write((b"end", b"1"))
    node.loop.settle()
    assert answers == [node.machine.applied]


def checkpoint_of(node: Hosted, source: Hosted, snapshot_id: OffsetAndEpoch) -> None:
    """A leader's checkpoint is downloaded: it is on the store, and then the log begins there."""
    node.disk.replace(node.store.path(snapshot_id), source.content(snapshot_id))
    node.store.added(snapshot_id)


def leader_with(count: int) -> tuple[Hosted, OffsetAndEpoch]:
    leader = Hosted(seed=1)
    for i in range(count):
        leader.write((b"key-%d" % i, b"leader's"))
    return leader, leader.take()


def test_a_state_machine_host_replaces_its_state_by_a_checkpoint_fetched_from_the_leader():
    leader, newest = leader_with(30)
    node = Hosted()
    node.write(*MANY[:5])
    node.loop.settle()
    node.log.depose()
    checkpoint_of(node, leader, newest)
    node.log.install_snapshot(newest)
    assert not node.host.ready, "half of it could be seen"
    node.loop.settle()
    assert node.host.ready
    assert node.machine.applied == newest
    assert node.machine.get(b"key-7") == b"leader's"
    assert len(node.machine) == 30
    node.write((b"after", b"1"))
    node.loop.settle()
    assert node.machine.get(b"after") == b"1"


def test_the_state_machine_host_loads_a_checkpoint_if_the_log_starts_above_its_state():
    """It came while the log already held all that it covers: nobody was told to load it."""
    leader, newest = leader_with(30)
    node = Hosted()
    for i in range(30):
        node.write((b"key-%d" % i, b"leader's"))
    assert node.machine.applied.offset < 2, "it does not lag"
    checkpoint_of(node, leader, newest)
    node.log.drop_prefix(newest)
    node.write((b"after", b"1"))
    node.loop.settle()
    assert (node.host.loaded, len(node.machine)) == (1, 31)
    assert node.machine.applied.offset == node.log.high_watermark


def test_the_state_machine_host_never_loads_a_checkpoint_older_than_its_state():
    """Mutant: a host that loads whatever it is told of."""
    node = Hosted()
    node.write(*MANY)
    older = node.take()
    node.write((b"key-1", b"newer"))
    node.loop.settle()
    node.host.snapshot(older)
    node.loop.settle()
    assert (node.host.loaded, node.machine.get(b"key-1")) == (0, b"newer")


def test_a_state_machine_host_abandons_its_own_checkpoint_for_a_checkpoint_of_the_leader():
    leader, newest = leader_with(90)
    node = Hosted()
    node.write(*MANY)
    node.loop.settle()
    answers: list[OffsetAndEpoch | Exception] = []
    node.host.take_now(answers.append)
    for _ in range(5):
        node.loop.turn()
    assert node.host.generation is not None
    node.log.depose()
    checkpoint_of(node, leader, newest)
    node.log.install_snapshot(newest)
    node.loop.settle()
    assert isinstance(answers[0], NotHostedError)
    assert node.store.ids == (newest,)
    assert node.machine.applied == newest
    assert len(node.disk.listdir(DIRECTORY)) == 1, "the part stayed"


def test_a_newer_checkpoint_interrupts_the_loading_of_an_older_checkpoint():
    leader, older = leader_with(20)
    for i in range(20, 60):
        leader.write((b"key-%d" % i, b"newer"))
    newest = leader.take()
    node = Hosted()
    for one in (older, newest):
        checkpoint_of(node, leader, one)
        node.log.install_snapshot(one)
        node.loop.turn()
    node.loop.settle()
    assert (node.machine.applied, len(node.machine)) == (newest, 60)


def test_a_damaged_checkpoint_on_the_nodes_own_disk_stops_the_node():
    node = Hosted()
    node.write(*MANY)
    taken = node.take()
    node.restart()
    node.disk.flip_bit(node.store.path(taken), 200)
    node.restart()
    with pytest.raises(DamagedFileError):
        node.loop.settle()
    assert not node.host.ready


@pytest.mark.parametrize(
    "codec", [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD]
)
def test_the_state_machine_host_loads_a_compressed_checkpoint(codec):
    """Ours are not compressed; another implementation's may be (KIP-630)."""
    node = Hosted()
    node.write(*MANY)
    taken = node.take()
    content = node.content(taken)
    parts = []
    for batch in iter_batches(content):
        if batch.header.is_control:
            parts.append(bytes(batch.view))
            continue
        values = [(None, record.value, record.timestamp, ()) for record in iter_records(batch)]
        packed = build_batch(values, base_offset=0, leader_epoch=0, compression=codec)
        stamp(packed, base_offset=batch.header.base_offset, leader_epoch=batch.header.leader_epoch)
        parts.append(bytes(packed))
    footer = len(parts[-1])
    body = b"".join(parts[:-1])
    count = sum(batch.header.record_count for batch in iter_batches(body))
    last = control_batch(
        SnapshotFooterRecord(record_count=count, content_crc=crc32c(body)),
        base_offset=count,
        epoch=taken.epoch,
    )
    assert len(last) == footer
    node.restart()
    node.disk.replace(node.store.path(taken), body + last)
    node.restart()
    node.loop.settle()
    assert (node.host.loaded, len(node.machine)) == (1, 40)
    assert node.machine.get(b"key-39") == b"value-39"


def test_a_checkpoint_with_records_of_another_state_machine_stops_the_node():
    node = Hosted()
    node.write((b"a", b"1"))
    node.loop.settle()
    snapshot_id = node.machine.applied
    with CheckpointWriter.create(node.disk, DIRECTORY, snapshot_id, last_timestamp=0) as writer:
        writer.append_value(bytes.fromhex("01 0c 00 02 78 00 07 00"))  # a feature level
        writer.freeze()
    node.restart()
    with pytest.raises(UnknownRecordError, match="unknown metadata record type 12"):
        node.loop.settle()


def test_a_checkpoint_batch_that_is_invalid_despite_its_checksum_does_not_change_the_state():
    node = Hosted()
    node.write((b"a", b"1"))
    batch = build_batch([(b"b", b"2", 0, ())], base_offset=0, leader_epoch=0)
    batch[-1] = 77  # more headers than there are bytes
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    epoch = node.log.leading_epoch
    assert epoch is not None
    node.log.propose(SilentTicket(), epoch, Draft((bytes(batch),), (1,)))
    node.write((b"c", b"3"))
    node.loop.settle()
    assert (len(node.machine), node.machine.damaged_batches) == (2, 1)
    assert node.machine.applied.offset == node.log.end_offset


def test_a_state_machine_host_with_an_apply_delay_applies_all_commits_of_the_delay_together():
    """So a leader's answers and a follower's next Fetch go first, and are not held up for long."""
    node = Hosted(pace=Pace(apply_delay_ms=1.0))
    node.write((b"a", b"1"))
    node.loop.settle()
    before = node.machine.applied
    began_ms = node.loop.time_ms
    for i in range(5):
        node.write((b"a", b"%d" % i))
        node.host.take_now(lambda _: None)  # whoever asks for something waits as well
        assert node.machine.applied == before
    assert node.loop.turn()
    assert node.machine.applied.offset == node.log.end_offset
    assert (node.machine.get(b"a"), node.loop.failure) == (b"4", None)
    assert node.loop.time_ms - began_ms < 3


class ReadMachine(KeyValueMachine):
    """One that is read where it is."""

    on_wanted: Callable[[], None] | None = None


def test_a_read_that_waits_for_committed_records_ends_the_apply_delay_of_the_state_machine():
    node = Hosted(machine=ReadMachine, pace=Pace(apply_delay_ms=10.0))
    node.write((b"a", b"1"))
    node.loop.settle()
    for i in range(3):  # the timer of the first is still there when the second begins to linger
        began_ms = node.loop.time_ms
        node.write((b"a", b"%d" % i))
        assert node.machine.applied.offset < node.log.end_offset
        assert isinstance(node.machine, ReadMachine)
        assert node.machine.on_wanted is not None
        node.machine.on_wanted()
        node.machine.on_wanted()
        assert node.loop.turn()
        assert node.machine.applied.offset == node.log.end_offset
        assert node.loop.time_ms - began_ms < 3
    node.machine.on_wanted()  # nobody lingers: nothing to do
    node.loop.settle()
    assert node.loop.failure is None


def test_the_state_machine_host_of_a_new_leader_applies_committed_records_without_a_delay():
    node = Hosted(pace=Pace(apply_delay_ms=10.0))
    node.write((b"a", b"1"))
    node.loop.settle()
    node.write((b"a", b"2"))
    began_ms = node.loop.time_ms
    node.log.depose(lose_uncommitted=False)
    listener = Listening()
    node.host._listener = listener
    node.log.elect()
    while not any(line.startswith("lead") for line in listener.lines):
        assert node.loop.turn()
    assert node.loop.time_ms - began_ms < 3


class Listening:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def applied(self, offset: int) -> None:
        self.lines.append(f"applied {offset}")

    def lead(self, epoch: int) -> None:
        self.lines.append(f"lead {epoch}")

    def step_down(self, epoch: int) -> None:
        self.lines.append(f"step down {epoch}")


def test_a_state_machine_is_notified_of_leadership_after_all_earlier_epochs_are_applied():
    """It may decide at once. Source: docs/design/state-machines.md#a-new-leader-decides-nothing."""
    node = Hosted(pace=Pace(apply_ms=0.001))
    node.log.auto_commit = False
    listener = Listening()
    node.host._listener = listener
    epoch = node.log.elect()
    node.log.commit()
    for i in range(9):
        node.write((b"%d" % i, b"x" * 300_000))
    node.log.depose(lose_uncommitted=False)
    node.loop.settle()
    listener.lines.clear()
    node.log.elect()
    node.log.commit()
    assert "lead 2" not in listener.lines, "before what is committed is applied"
    node.loop.settle()
    assert listener.lines[-2:] == [f"applied {node.log.end_offset}", "lead 2"]
    node.log.depose()
    assert listener.lines[-1] == "step down 2"
    assert epoch == 1


def test_the_state_machine_host_reads_each_committed_batch_once_however_short_its_turns():
    node = Hosted(pace=Pace(apply_ms=0.001))
    node.write((b"first", b"x"))
    node.loop.settle()
    node.log.auto_commit = False
    read_bytes: list[int] = []
    read = node.log.read

    def counted_read(offset: Offset, max_bytes: int) -> Buffer:
        data = read(offset, max_bytes)
        read_bytes.append(len(data))
        return data

    node.log.read = counted_read  # type: ignore[method-assign]
    for number in range(100):
        node.write((b"%d" % number, b"x"))
    listener = Listening()
    node.host._listener = listener
    node.log.commit()
    node.loop.settle()
    assert len(listener.lines) >= 100, "a turn went on after its time"
    assert node.machine.applied.offset == node.log.end_offset
    assert len(read_bytes) == 1
    assert len(node.machine) == 101


class Persistent(KeyValueMachine):
    """Keeps its state beside the log: the process ends, it does not."""

    resets = 0

    def reset(self) -> None:
        super().reset()
        self.resets += 1


def persistent_node() -> tuple[Hosted, Persistent]:
    machine = Persistent()
    node = Hosted(machine=lambda: machine)
    node.write(*MANY)
    node.loop.settle()
    return node, machine


def test_a_restarted_state_machine_applies_only_records_after_its_stored_offset():
    node, machine = persistent_node()
    node.take()
    node.write((b"key-1", b"new"))
    node.loop.settle()
    bytes_since = node.host.situation.bytes_since
    node.restart()
    node.write((b"key-2", b"new"))
    node.loop.settle()
    assert (node.host.loaded, machine.resets) == (0, 0)
    assert machine.applied.offset == node.log.end_offset
    assert node.host.situation.bytes_since > bytes_since
    assert machine.changed_records == 2


@pytest.mark.parametrize("same_history", [True, False])
def test_a_state_machine_ahead_of_a_new_checkpoint_keeps_its_state_if_the_epochs_are_equal(
    same_history,
):
    """The log begins there, and what was to be compared is gone. Found by simulation, seed 255."""
    node, machine = persistent_node()
    node.take()
    for i in range(6):
        node.write((b"more-%d" % i, b"1"))
    node.loop.settle()
    history = list(node.log._stored)
    between = replayed(history, 45)
    snapshot_id = between.take()
    node.log.restart()
    node.log.high_watermark = None
    end_offset, node.log.end_offset = node.log.end_offset, Offset(0)  # the log lost its tail
    if not same_history:
        machine._applied = OffsetAndEpoch(machine.applied.offset, 9)
    node._begin()
    node.log.end_offset = end_offset
    assert not node.host.ready
    checkpoint_of(node, between, snapshot_id)
    node.log.install_snapshot(snapshot_id)
    for stored in history:
        if stored.base_offset >= snapshot_id.offset:
            node.log._append(stored.data, stored.end_offset - stored.base_offset, stored.epoch)
    node.log.commit()
    node.loop.settle()
    assert node.host.ready == same_history
    assert machine.applied == (47, 1 if same_history else 9)
    assert (machine.resets, node.host.loaded) == (0, 0)
    assert node.log.forks == ([] if same_history else [((47, 9), 1)])


def test_a_state_machine_ahead_of_the_high_watermark_answers_no_read():
    node, machine = persistent_node()
    node.log.restart()
    node.log.high_watermark = None
    node._begin()
    node.log.commit(1)
    node.loop.settle()
    assert not node.host.ready
    node.log.commit()
    node.loop.settle()
    assert node.host.ready
    assert (machine.applied.offset, machine.resets) == (41, 0)


@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("end_offset", [41, 17])
def test_the_state_machine_host_reports_a_stored_state_with_another_last_epoch_as_a_fork(
    end_offset, snapshot
):
    """Only committed records are applied: the log has lost them, and nothing is reset."""
    node, machine = persistent_node()
    if snapshot:
        node.take()
        node.write((b"more", b"1"))
        node.loop.settle()
    node.log.restart()
    machine._applied = OffsetAndEpoch(end_offset, 9)
    node._begin()
    node.loop.settle()
    assert node.log.forks == [((end_offset, 9), 1)]
    assert not node.host.ready
    assert (machine.resets, machine.applied) == (0, (end_offset, 9))


def test_a_state_machine_host_whose_state_is_ahead_of_the_logs_end_reports_no_fork():
    node, machine = persistent_node()
    node.log.restart()
    tail = node.log._stored.pop()
    node.log.end_offset = node.log.high_watermark = tail.base_offset
    node._begin()
    node.loop.settle()
    assert (node.log.forks, node.host.ready, machine.resets) == ([], False, 0)
    node.log._append(tail.data, tail.end_offset - tail.base_offset, tail.epoch)
    node.log.commit()
    node.loop.settle()
    assert (node.log.forks, node.host.ready, machine.resets) == ([], True, 0)


def test_the_state_machine_host_resets_a_stored_state_that_ends_inside_a_batch():
    node, machine = persistent_node()
    node.log.restart()
    machine._applied = OffsetAndEpoch(17, 1)
    machine._base = {b"wrong": b"1"}
    node._begin()
    node.loop.settle()
    assert machine.get(b"wrong") is None
    assert len(machine) == 40
    assert machine.applied == (node.log.end_offset, 1)


def test_a_stopped_state_machine_host_fails_pending_checkpoint_requests():
    node = Hosted()
    node.write(*MANY)
    node.loop.settle()
    answers: list[OffsetAndEpoch | Exception] = []
    node.host.take_now(answers.append)
    for _ in range(4):
        node.loop.turn()
    node.host.take_now(answers.append)
    node.host.stop()
    node.host.take_now(answers.append)
    node.loop.settle()
    assert [type(answer) for answer in answers] == [NotHostedError] * 3
    assert node.disk.listdir(DIRECTORY) == []


KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"e", b"f"])
VALUES = st.one_of(st.none(), st.sampled_from([b"", b"1", b"22", b"x" * 90]))
PAIRS = st.lists(st.tuples(st.one_of(st.none(), KEYS), VALUES), min_size=1, max_size=5)


class HostVersusModel(RuleBasedStateMachine):
    """The host beside a dict; and every checkpoint beside one of a node that read the whole log."""

    @initialize(seed=st.integers(0, 1 << 32), small=st.booleans(), lingers=st.booleans())
    def begin(self, seed: int, small: bool, lingers: bool) -> None:
        bytes_between = 300 if small else 1 << 40
        settings = SnapshotSettings(max_bytes_between=bytes_between, max_interval_ms=0)
        pace = replace(SMALL_STEPS, apply_delay_ms=1.0) if lingers else SMALL_STEPS
        self.node = Hosted(seed=seed, settings=settings, pace=pace, log=MemoryLog())
        self.model: dict[bytes, bytes] = {}
        self.history: list[_Stored] = []
        self.checked: set[OffsetAndEpoch] = set()
        self.applied = 0

    def note_history(self) -> None:
        known = self.history[-1].end_offset if self.history else 0
        self.history += [one for one in self.node.log._stored if one.base_offset >= known]

    @rule(pairs=PAIRS)
    def write(self, pairs: list[tuple[bytes | None, bytes | None]]) -> None:
        self.node.write(*pairs, time_ms=len(self.history))
        self.note_history()
        for key, value in pairs:
            if key is not None and value is not None:
                self.model[key] = value
            elif key is not None:
                self.model.pop(key, None)

    @rule(turns=st.integers(1, 12), disk=st.booleans())
    def go_on(self, turns: int, disk: bool) -> None:
        for _ in range(turns):
            self.node.loop.turn(disk=disk)

    @rule()
    def take(self) -> None:
        self.node.host.take_now(lambda _: None)

    @rule()
    def settle(self) -> None:
        self.node.loop.settle()
        machine = self.node.machine
        assert {key: machine.get(key) for key in self.model} == self.model
        assert len(machine) == len(self.model)
        assert machine.applied.offset == self.node.log.end_offset

    @rule(power_fails=st.booleans())
    def restart(self, power_fails: bool) -> None:
        self.node.restart(power_fails=power_fails)
        self.applied = 0

    @rule()
    def cut(self) -> None:
        """The log starts at the newest checkpoint, and older ones are dropped."""
        newest = self.node.store.newest
        if newest is not None and newest.offset > self.node.log.start_offset:
            self.node.log.drop_prefix(newest)
            self.node.store.drop_below(newest.offset)

    @precondition(lambda self: self.history and self.node.log.high_watermark)
    @rule()
    def install(self) -> None:
        """Another node's checkpoint of everything, as if this one had lagged."""
        end = self.node.log.end_offset
        other = replayed(self.history, end)
        snapshot_id = other.take()
        if snapshot_id in self.node.store.ids:
            return
        checkpoint_of(self.node, other, snapshot_id)
        self.node.log.depose()
        self.node.log.install_snapshot(snapshot_id)

    @invariant()
    def every_checkpoint_is_that_of_the_whole_log(self) -> None:
        """Invariant 4, byte for byte."""
        if not hasattr(self, "node"):
            return
        assert self.node.loop.failure is None, repr(self.node.loop.failure)
        for one in self.node.store.ids:
            if one not in self.checked:
                self.checked.add(one)
                assert self.node.content(one) == replayed_content(self.history, one)
                verify_checkpoint(self.node.disk, self.node.store.path(one), decode=True)

    @invariant()
    def the_state_never_goes_back(self) -> None:
        if hasattr(self, "node") and self.node.host.ready:
            assert self.node.machine.applied.offset >= self.applied
            self.applied = self.node.machine.applied.offset


TestHostVersusModel = HostVersusModel.TestCase
TestHostVersusModel.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, print_blob=True
)
