"""Compaction of batches against a model that is too simple to be wrong, and its rules one by one.

Source: docs/design/compaction.md; Kafka's Cleaner and MemoryRecords.filterTo.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from records.batch import (
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Batch,
    iter_batches,
    iter_records,
    read_batch,
)
from records.batch_writer import build_batch, build_control_batch, seal, stamp_log_append_time
from records.cleaning import (
    Round,
    clean_block,
    cut_front,
    empty_batch,
    newest_by_map,
    newest_by_offset,
    note_keys,
)
from records.compression import Compression
from records.errors import CorruptBatchError
from records.final_batches import check_final
from records.final_runs import RunBuilder, finish_run, read_final_run
from records.offset_map import OffsetMap
from records.record_block import read_block

SALT = bytes(16)
NOW = 1_000_000
RETENTION = 1_000
RULES = Round(now_ms=NOW, delete_retention_ms=RETENTION, last_sequences={}, salt=SALT)


def batch_of(records, base_offset=0, **options) -> Batch:
    """Build a batch of (key, value) pairs, with times that rise from 10."""
    rows = [(key, value, 10 + i, [("h", b"x")]) for i, (key, value) in enumerate(records)]
    return read_batch(build_batch(rows, base_offset=base_offset, leader_epoch=0, **options))


def clean(batches: Sequence[Batch], rules: Round = RULES):
    """Clean batches with a map of all of their own records."""
    block, offsets = read_block(batches), OffsetMap()
    note_keys(block, offsets, rules.salt)
    survivors = offsets.drain_offsets()
    return clean_block(block, newest_by_offset(block, survivors), rules)


def rows_of(batches: Sequence[Batch]):
    """Return offset, time, key, value and headers of all records, read by the reference reader."""
    return [
        (
            record.offset,
            record.timestamp,
            None if record.key is None else bytes(record.key),
            None if record.value is None else bytes(record.value),
            [(header.key, bytes(header.value)) for header in record.headers],
        )
        for batch in batches
        for record in iter_records(read_batch(batch.view))
    ]


def test_cleaning_does_not_copy_a_batch_that_loses_no_record() -> None:
    batch = batch_of([(b"a", b"1"), (b"b", b"2")])
    (kept,) = clean([batch]).batches
    assert kept.view is batch.view


def test_cleaning_a_batch_keeps_its_offsets_timestamps_headers_codec_and_producer() -> None:
    for codec in Compression:
        first = batch_of(
            [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")],
            base_offset=5,
            compression=codec,
            producer_id=7,
            producer_epoch=1,
            base_sequence=40,
        )
        second = batch_of([(b"b", b"4")], base_offset=8)
        kept, _ = clean([first, second]).batches
        assert rows_of([kept]) == [row for row in rows_of([first]) if row[2] != b"b"]
        header, before = kept.header, first.header
        assert header.compression is codec
        assert (header.base_offset, header.last_offset) == (5, 7)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, 40)
        assert header.record_count == 2
        assert header.max_timestamp == before.max_timestamp


def test_a_cleaned_batchs_max_timestamp_is_the_greatest_of_its_remaining_records() -> None:
    first = batch_of([(b"a", b"1"), (b"b", b"2")])
    kept, _ = clean([first, batch_of([(b"b", b"3")], base_offset=2)]).batches
    assert kept.header.max_timestamp == 10


def test_a_cleaned_batch_with_log_append_time_keeps_its_append_time() -> None:
    data = build_batch([(b"a", b"1", 10, ()), (b"b", b"2", 11, ())], base_offset=0, leader_epoch=0)
    stamp_log_append_time(data, timestamp=500)
    kept, _ = clean([read_batch(data), batch_of([(b"b", b"3")], base_offset=2)]).batches
    assert kept.header.attributes & LOG_APPEND_TIME
    assert rows_of([kept]) == [(0, 500, b"a", b"1", [])]


def test_cleaning_removes_a_tombstone_once_the_delete_horizon_that_it_set_has_passed() -> None:
    batch = batch_of([(b"a", b"1"), (b"a", None), (b"b", b"2")])
    first = clean([batch])
    (marked,) = first.batches
    assert first.sets_horizons
    assert marked.header.attributes & DELETE_HORIZON
    assert marked.header.base_timestamp == NOW + RETENTION
    assert rows_of([marked]) == rows_of([batch])[1:]

    early = clean([marked], RULES._replace(now_ms=NOW + RETENTION - 1))
    assert early.batches[0].view is marked.view
    assert not early.sets_horizons
    assert not early.drops_tombstones

    late = clean([marked], RULES._replace(now_ms=NOW + RETENTION))
    assert late.drops_tombstones
    assert rows_of(late.batches) == rows_of([batch])[2:]


def test_a_second_cleaning_of_a_batch_keeps_the_delete_horizon_that_the_first_has_set() -> None:
    (marked,) = clean([batch_of([(b"a", None), (b"b", b"1")])]).batches
    newer = batch_of([(b"b", b"2")], base_offset=2)
    kept, _ = clean([marked, newer], RULES._replace(now_ms=NOW + 1)).batches
    assert kept.header.base_timestamp == NOW + RETENTION
    assert rows_of([kept]) == [(0, 10, b"a", None, [("h", b"x")])]


def test_cleaning_removes_records_without_a_key() -> None:
    (kept,) = clean([batch_of([(None, b"1"), (b"a", b"2")])]).batches
    assert [row[2] for row in rows_of([kept])] == [b"a"]


def test_cleaning_keeps_an_emptied_batch_only_as_the_last_of_an_active_producer() -> None:
    old = batch_of([(b"a", b"1")], producer_id=7, producer_epoch=2, base_sequence=3)
    new = batch_of([(b"a", b"2")], base_offset=1)
    assert clean([old, new]).batches == [new]
    empty, _ = clean([old, new], RULES._replace(last_sequences={7: 3})).batches
    again = read_batch(empty.view)
    assert again.header == empty.header
    assert (again.header.record_count, again.header.last_offset) == (0, 0)
    assert (again.header.producer_id, again.header.base_sequence) == (7, 3)
    assert list(iter_records(again)) == []
    assert clean([empty, new]).batches == [new]  # the next round drops it


def test_cleaning_keeps_control_batches_and_ignores_the_keys_of_control_records() -> None:
    """Control records of different producers have equal keys; Redpanda 6664."""
    markers = [
        read_batch(build_control_batch([(1, b"")], base_offset=i, leader_epoch=0, timestamp=1))
        for i in range(2)
    ]
    key = bytes(next(iter(iter_records(markers[0]))).key)
    data = batch_of([(key, b"1")], base_offset=2)
    assert clean([*markers, data]).batches == [*markers, data]
    assert clean([data._replace(position=0), *markers]).batches == [data, *markers]
    assert markers[0].header.attributes & CONTROL


def test_cleaning_removes_clean_records_whose_keys_have_newer_records_in_the_dirty_part() -> None:
    head, dirty = batch_of([(b"a", b"1"), (b"b", b"2")]), batch_of([(b"b", b"3")], base_offset=2)
    offsets = OffsetMap()
    note_keys(read_block([dirty]), offsets, SALT)
    block = read_block([head])
    kept = clean_block(block, newest_by_map(block, offsets, SALT), RULES)
    assert [row[2] for row in rows_of(kept.batches)] == [b"a"]


def test_the_error_for_a_batch_whose_records_contradict_its_header_names_the_offset() -> None:
    good = batch_of([(b"a", b"1")])
    for position, byte in ((61, 0x02), (61, 0x13), (64, 0x03), (65, 0x7F), (67, 0x7F), (61, 0xFF)):
        data = bytearray(batch_of([(b"a", b"1")], base_offset=1).view)
        data[position] = byte
        seal(data)
        with pytest.raises(CorruptBatchError) as caught:
            read_block([good, read_batch(data)])
        assert caught.value.offset == 1


KEYS = st.sampled_from([None, b"", b"a", b"b", b"c", bytes(300)])
VALUES = st.sampled_from([None, b"", b"v", bytes(200)])
TIMES = st.integers(0, 1 << 42)


@dataclass
class Log:
    """A partition's batches, the same as plain rows, and its clock."""

    batches: list[Batch] = field(default_factory=list)
    rows: dict[int, tuple] = field(default_factory=dict)  # offset: (time, key, value)
    batch_of: dict[int, int] = field(default_factory=dict)  # offset: its batch's base offset
    horizons: dict[int, int] = field(default_factory=dict)  # base offset of a batch: its horizon
    end: int = 0
    now: int = NOW

    def append(self, records, codec, append_time) -> None:
        rows = [(key, value, time, ()) for key, value, time in records]
        data = build_batch(rows, base_offset=0, leader_epoch=-1, compression=codec)
        base = self.end
        self.end += len(records)
        when = self.now if append_time else None
        self.batches += finish_run(data, base_offset=base, end_offset=self.end, append_time=when)
        for i, (key, value, time) in enumerate(records):
            self.rows[base + i] = (self.now if append_time else time, key, value)
            self.batch_of[base + i] = base

    def clean_by_model(self) -> None:
        newest = {key: offset for offset, (_, key, _) in sorted(self.rows.items())}
        for offset, (_, key, value) in list(self.rows.items()):
            horizon = self.horizons.get(self.batch_of[offset])
            expired = value is None and horizon is not None and horizon <= self.now
            if key is None or newest[key] != offset or expired:
                del self.rows[offset]
        for offset, (_, _, value) in self.rows.items():
            if value is None:
                self.horizons.setdefault(self.batch_of[offset], self.now + RETENTION)

    def clean(self, first_dirty: int) -> None:
        rules = RULES._replace(now_ms=self.now)
        clean_part = [batch for batch in self.batches if batch.header.base_offset < first_dirty]
        dirty_part = [batch for batch in self.batches if batch.header.base_offset >= first_dirty]
        offsets, builder = OffsetMap(), RunBuilder(0, max_run_bytes=500)
        dirty, head = read_block(dirty_part), read_block(clean_part)
        note_keys(dirty, offsets, SALT)
        newest = newest_by_map(head, offsets, SALT)
        kept = clean_block(head, newest, rules).batches
        survivors = offsets.drain_offsets()
        newest = newest_by_offset(dirty, survivors)
        kept += clean_block(dirty, newest, rules).batches
        if not kept or kept[-1].header.end_offset < self.end:
            kept.append(empty_batch(self.batches[-1].header))
        runs = [run for batch in kept for run in builder.add(batch, 5)]
        runs += builder.take()
        self.batches, at = [], 0
        for run in runs:
            assert run.base_offset == at
            at = run.last_offset + 1
            data = b"".join(run.parts)
            assert len(data) == run.size_bytes
            batches = read_final_run(data, base_offset=run.base_offset, end_offset=at)
            assert sum(batch.header.record_count for batch in batches) == run.record_count
            self.batches += batches
        assert at == self.end


BATCHES = st.tuples(
    st.lists(st.tuples(KEYS, VALUES, TIMES), min_size=1, max_size=6),
    st.sampled_from(Compression),
    st.booleans(),
)
STEPS = st.lists(
    st.one_of(BATCHES, st.tuples(st.just("clean"), st.integers(0, 2 * RETENTION))), max_size=20
)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_random_appends_and_cleanings_leave_the_same_records_as_a_model_of_compaction(
    steps,
) -> None:
    log, first_dirty = Log(), 0
    for step in steps:
        if step[0] != "clean":
            log.append(*step)
        elif log.batches:
            log.now += step[1]
            log.clean_by_model()
            log.clean(first_dirty)
            first_dirty = log.end
        found = {
            record.offset: (
                record.timestamp,
                None if record.key is None else bytes(record.key),
                None if record.value is None else bytes(record.value),
            )
            for batch in log.batches
            for record in iter_records(read_batch(batch.view))
        }
        assert found == log.rows


def test_batches_with_final_offsets_may_have_gaps_but_must_end_at_the_end_of_their_run() -> None:
    batches = [batch_of([(b"a", b"1")], base_offset=3), batch_of([(b"b", b"1")], base_offset=7)]
    check_final(batches, base_offset=0, end_offset=8)
    for base, end in ((4, 8), (0, 9), (0, 7)):
        with pytest.raises(CorruptBatchError):
            check_final(batches, base_offset=base, end_offset=end)
    with pytest.raises(CorruptBatchError):
        check_final(batches[::-1], base_offset=0, end_offset=4)


def test_finishing_a_run_of_wal_batches_with_another_end_offset_raises_an_error() -> None:
    data = bytes(batch_of([(b"a", b"1"), (b"b", b"1")]).view) * 2
    batches = finish_run(data, base_offset=10, end_offset=14, append_time=77)
    assert [batch.header.base_offset for batch in batches] == [10, 12]
    assert [batch.header for batch in iter_batches(batches[0].view.obj)] == [
        batch.header for batch in batches
    ]
    with pytest.raises(CorruptBatchError):
        finish_run(data, base_offset=10, end_offset=15, append_time=None)


def test_a_run_builder_begins_a_new_run_at_a_size_limit_and_at_a_change_of_timestamp_type() -> None:
    batches = [batch_of([(b"a", b"1")], base_offset=i) for i in range(5)]
    size = len(batches[0].view)
    builder = RunBuilder(0, max_run_bytes=2 * size)
    runs = [run for batch in batches for run in builder.add(batch, 5)] + list(builder.take())
    assert [(run.base_offset, run.last_offset, run.batch_count) for run in runs] == [
        (0, 1, 2),
        (2, 3, 2),
        (4, 4, 1),
    ]
    timed = bytearray(batches[1].view)
    stamp_log_append_time(timed, timestamp=9)
    builder = RunBuilder(0)
    runs = list(builder.add(batches[0], 4)) + list(builder.add(read_batch(timed), 7))
    runs += builder.take()
    assert [(run.timestamp_type, run.max_timestamp, run.append_time) for run in runs] == [
        (0, 10, 4),
        (1, 9, 7),
    ]


def test_an_offset_map_keeps_the_newest_offset_of_each_of_two_digests_with_an_equal_half(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(seed := np.random.default_rng().integers(1 << 31))
    print(f"seed {seed}")
    for _ in range(40):
        monkeypatch.setattr("records.offset_map.MIN_PENDING", int(rng.integers(1, 40)))
        offsets, model, at = OffsetMap(), {}, 0
        for _ in range(15):
            digests = rng.integers(0, 6, (int(rng.integers(0, 20)), 2)).astype(np.uint64)
            digests[:, 0] <<= np.uint64(60)
            numbers = np.arange(at, at + len(digests))
            at += len(digests)
            offsets.put(digests, numbers)
            model.update(zip(map(tuple, digests.tolist()), numbers.tolist(), strict=True))
        asked = np.array([*model, (9, 9)], np.uint64)
        assert offsets.newest(asked).tolist() == [*model.values(), -1]
        assert offsets.drain_offsets().tolist() == sorted(model.values())
        assert len(offsets) == 0


def test_cleaning_removes_older_records_of_a_key_from_transactional_batches_too() -> None:
    first = batch_of([(b"a", b"1")], attributes=TRANSACTIONAL, producer_id=1)
    second = batch_of([(b"a", b"2")], base_offset=1, attributes=TRANSACTIONAL, producer_id=1)
    assert clean([first, second]).batches == [second]


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4])
@pytest.mark.parametrize("attributes", [0, LOG_APPEND_TIME])
def test_cutting_records_off_a_batch_keeps_offsets_times_and_sequences_of_its_other_records(
    codec: Compression, attributes: int
) -> None:
    pairs = [(b"k%d" % i, b"v" * i) for i in range(100)]
    ids = {"producer_id": 7, "producer_epoch": 1, "base_sequence": 2**31 - 3}
    batch = batch_of(pairs, 10, compression=codec, attributes=attributes, **ids)
    cut = cut_front(batch, 80)
    assert read_batch(cut.view) == cut
    assert [*iter_records(cut)] == [one for one in iter_records(batch) if one.offset >= 80]
    assert (cut.header.base_offset, cut.header.last_offset) == (80, 109)
    assert cut.header.base_sequence == 67
    assert cut.header.max_timestamp == batch.header.max_timestamp


def test_cutting_all_records_off_a_batch_leaves_an_empty_batch() -> None:
    (kept,) = clean(
        [batch_of([(b"a", b"1"), (b"b", b"1")], 5), batch_of([(b"b", b"2")], 7)]
    ).batches[:1]
    cut = cut_front(kept, 6)
    assert (cut.header.base_offset, cut.header.last_offset, cut.header.record_count) == (6, 6, 0)
