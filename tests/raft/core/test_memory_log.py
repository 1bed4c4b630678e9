"""The in-memory log keeps the contract of `raft.interfaces`, step by step."""

from __future__ import annotations

import asyncio

import pytest

from raft.interfaces import Draft, NotLeaderError, ReplicatedLog, draft_values
from records.batch import iter_batches, iter_records
from records.types import Epoch, Offset, OffsetAndEpoch
from tests.doubles.memory_log import MemoryLog, SilentTicket


class Diary:
    """A watcher and a ticket that record their notifications."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def committed(self, high_watermark: Offset) -> None:
        self.lines.append(f"committed {high_watermark}")

    def lead(self, epoch: Epoch) -> None:
        self.lines.append(f"lead {epoch}")

    def step_down(self, epoch: Epoch) -> None:
        self.lines.append(f"step down {epoch}")

    def snapshot(self, snapshot_id: OffsetAndEpoch) -> None:
        self.lines.append(f"snapshot {tuple(snapshot_id)}")

    def accepted(self, epoch: Epoch, base_offset: Offset, end_offset: Offset) -> None:
        self.lines.append(f"accepted {epoch} {base_offset}..{end_offset}")

    def refused(self, error: int) -> None:
        self.lines.append(f"refused {error}")


def values(log: ReplicatedLog, from_offset: int = 0) -> list[bytes]:
    data = log.read(Offset(from_offset), 1 << 20)
    batches = [batch for batch in iter_batches(data) if not batch.header.is_control]
    return [bytes(record.value or b"") for batch in batches for record in iter_records(batch)]


def draft(*words: bytes) -> Draft:
    return draft_values(words, timestamp_ms=0)


def test_a_memory_log_announces_its_leadership_after_its_first_record_is_committed() -> None:
    log, diary = MemoryLog(auto_commit=False), Diary()
    log.watch(diary)
    epoch = log.elect()
    log.propose(diary, epoch, draft(b"early"))
    log.commit()
    log.propose(diary, epoch, draft(b"a", b"b"))
    assert diary.lines == ["refused 6", "committed 1", "lead 1", "accepted 1 1..3"]
    assert values(log) == []
    log.commit(Offset(3))
    assert values(log) == [b"a", b"b"]


def test_the_memory_log_refuses_a_proposal_for_another_end_offset_or_epoch() -> None:
    log, diary = MemoryLog(), Diary()
    epoch = log.elect()
    log.propose(diary, epoch, draft(b"a"), expected_end_offset=Offset(1))
    log.propose(diary, epoch, draft(b"b"), expected_end_offset=Offset(1))
    log.propose(diary, Epoch(epoch + 1), draft(b"c"))
    log.propose(diary, epoch, Draft((), ()))
    assert diary.lines == ["accepted 1 1..2", "refused 42", "refused 6", "refused 42"]
    assert values(log) == [b"a"]


def test_a_deposed_memory_log_drops_uncommitted_records_only_if_its_test_requests_the_loss() -> (
    None
):
    for lose, kept in ((True, []), (False, [b"a"])):
        log = MemoryLog(auto_commit=False)
        epoch = log.elect()
        log.commit()
        log.propose(SilentTicket(), epoch, draft(b"a"))
        log.depose(lose_uncommitted=lose)
        log.auto_commit = True
        assert log.elect() == 2
        assert values(log) == kept


def test_a_new_watcher_of_a_memory_log_is_notified_of_snapshot_commit_and_leadership() -> None:
    log, diary = MemoryLog(), Diary()
    log.install_snapshot(OffsetAndEpoch(Offset(10), Epoch(3)))
    log.elect()
    log.watch(diary)
    assert diary.lines == ["snapshot (10, 3)", "committed 11", "lead 4"]
    with pytest.raises(ValueError, match="outside 10"):
        log.read(Offset(9), 100)


def test_a_read_of_the_memory_log_returns_at_least_one_whole_batch() -> None:
    log = MemoryLog()
    epoch = log.elect()
    for word in (b"a", b"b", b"c"):
        log.propose(SilentTicket(), epoch, draft(word, word))
    assert len(list(iter_batches(log.read(Offset(1), 1)))) == 1
    assert values(log, 4) == [b"b", b"b", b"c", b"c"]  # offset 4 is inside the second batch
    log.drop_prefix(OffsetAndEpoch(Offset(5), Epoch(1)))
    assert values(log, 5) == [b"c", b"c"]


def test_a_read_barrier_of_a_memory_log_that_does_not_lead_fails() -> None:
    log = MemoryLog()
    with pytest.raises(NotLeaderError):
        asyncio.run(log._barrier())
    log.elect()
    assert asyncio.run(log._barrier()) == 1
