"""The local segments of one broker: which bytes answer a Fetch, and which are kept.

    segments = LocalSegments(settings, wall_ms=...)
    await segments.begin()               # before clients come
    data, next_offset = await segments.read(partition, runs, from_offset=7, max_bytes=1 << 20)
    segments.fill(partition, batches, is_tail=True)
    await segments.close()

The runs of a read come from the broker's replica, at each Fetch; a range is used only for the run
that it came from, and after its checksum was compared. So nothing here must be right for a consumer
to get right bytes: what is lost, old or damaged costs a GET.

The trap: the disk. No call on the event loop waits for it: pages that are not in memory are read in
threads, and one other thread writes and deletes, in order. No call waits longer than `HANGS_S` for
a disk that hangs: readers are answered from the store, and the broker starts and shuts down.

Source: KIP-1163, Caching in local segments; docs/design/local-segments.md.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right, insort
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from diskless.fetch.local_segments.format import (
    CATCH_UP,
    ENTRY_BYTES,
    KIND_NAMES,
    TAIL,
    Entry,
    Header,
    TopicPartition,
    entry_at,
    identify,
    owner_of,
)
from diskless.fetch.local_segments.segment import (
    NoRegularFileError,
    Segment,
)
from diskless.fetch.local_segments.segment_disk import (
    BEGIN_S,
    HANGS_S,
    DiskHangsError,
    SegmentDisk,
    reason_of,
)
from diskless.fetch.local_segments.write_behind import WriteBehind
from diskless.fetch.runs_reader import FinalBatches, Run
from records.batch import iter_batches

log = logging.getLogger("diskless.fetch.local_segments")

RANGE_BYTES: Final = 64 * 1024  # of a range of several batches
SEGMENT_BYTES: Final = 64 * 1024 * 1024
SEGMENT_ENTRIES: Final = 16_384
SEGMENT_S: Final = 600.0  # for which a segment takes ranges
MAX_ENTRIES: Final = 4_000_000  # of all segments: 52 bytes each, in memory
MAX_OPEN: Final = 4  # segments of a partition that take ranges
LOOKED_AT: Final = 16  # segments that may have an offset; a miss costs a GET
RETRY_S: Final = 30.0  # after a failed write
CHECKED_AT_ONCE: Final = 1024 * 1024  # bytes, before the loop runs other tasks


class LocalSegmentsSettings(NamedTuple):
    """The directory of a broker's local segments, and their budgets."""

    directory: Path
    cluster_id: str
    node_id: int
    max_bytes: int = 10 * 1024**3
    fill_bytes_per_second: int = 64 * 1024**2
    others: Sequence[tuple[str, Path]] = ()  # directories of other uses, and their settings


@dataclass(slots=True)
class LocalSegmentsCounters:
    """Counts of reads, writes and discards, for metrics."""

    reads: int = 0  # of partitions
    hits: int = 0  # answered without the store
    read_bytes: int = 0
    missed_bytes: int = 0  # that were read from the memory cache or the store instead
    written_bytes: int = 0
    dropped_bytes: int = 0  # not written: the disk is slower than the readers and producers
    warmed_bytes: int = 0  # of chunks, read because this broker is their replica
    unwarmed_bytes: int = 0  # of chunks, left out because there was no room
    failures: int = 0  # of writes
    discarded: Counter[str] = field(default_factory=Counter)  # segments, by reason


class LocalRead(NamedTuple):
    """Batches of a partition from local segments."""

    data: memoryview
    next_offset: int  # behind them
    is_missing: bool  # whether the batch at `next_offset` must come from the store


class _Partition:
    """The segments of one partition."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []  # by base offset
        self.open: list[Segment] = []  # the longest open first


class _Piece(NamedTuple):
    """A range to read."""

    segment: Segment
    entry: Entry


class LocalSegments:
    """The local segments of one broker. Belongs to the event loop."""

    def __init__(
        self,
        settings: LocalSegmentsSettings,
        *,
        wall_ms: Callable[[], int],
        executor: Executor | None = None,
        keeps: Callable[[TopicPartition, int, int], bool] = lambda *_: True,
    ) -> None:
        """Prepare the cache; nothing on the disk is touched before `begin`.

        Args:  keeps: says whether any offset of a range, both ends inclusive, is kept here.
               executor: calls the disk, one call at a time; None: threads of its own.
        """
        self.counters = LocalSegmentsCounters()
        self._fault: str | None = None  # why nothing is written, or nothing served either
        self.bytes_of_kind = dict.fromkeys(KIND_NAMES, 0)
        self._settings = settings
        self._wall_ms = wall_ms
        self.keeps = keeps
        self._segment_bytes = min(SEGMENT_BYTES, settings.max_bytes // 8)
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._used: dict[int, OrderedDict[Segment, float]] = {
            kind: OrderedDict() for kind in KIND_NAMES
        }  # when each segment was last used, the longest unused first
        self._entries = 0
        self._retry_at = 0.0
        self._disk = SegmentDisk(
            settings.directory,
            cluster_id=settings.cluster_id,
            node_id=settings.node_id,
            others=settings.others,
            executor=executor,
        )
        self._writes = WriteBehind(
            self._disk.writer,
            bytes_per_second=settings.fill_bytes_per_second,
            on_written=self._on_written,
            on_failed=self._on_failed_write,
        )

    # --- life -----------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Claim the directory, find the segments in it, and start to write.

        A disk that refuses or hangs leaves the broker without local segments, and a `fault`.

        Raises:  CacheDirectoryError if an operator must decide.
        """
        loop, settings = asyncio.get_running_loop(), self._settings
        try:
            found, damaged_count = await self._disk.claim_and_load()
        except OSError as error:  # TimeoutError, too
            reason = reason_of(error) or f"the disk has not answered for {BEGIN_S:.0f} s"
            self._fault = f"local segments are off, {settings.directory}: {reason}"
            log.error("action=begin error=%r", self._fault)
            self._disk.release()
            return
        except BaseException:
            self._disk.release()
            raise
        if damaged_count:
            self.counters.discarded["damaged"] += damaged_count
        now, wall_s = loop.time(), self._wall_ms() / 1_000
        for segment, used_at in sorted(found, key=lambda pair: pair[1]):
            self._insert(segment, now - max(0.0, wall_s - used_at))
        self._make_room()
        self._writes.start()
        log.info(
            "directory=%s segments=%d bytes=%d", settings.directory, len(self), self.size_bytes
        )

    async def close(self) -> None:
        """Write what is queued, unless the disk hangs, and release the directory."""
        try:
            async with asyncio.timeout(HANGS_S):
                await self._writes.close()
                await asyncio.shield(asyncio.wrap_future(self._disk.release()))
        except TimeoutError:
            log.warning("directory=%s action=close error='hangs'", self._settings.directory)
        finally:
            self._disk.release()

    # --- what is there --------------------------------------------------------------------------

    @property
    def fault(self) -> str | None:
        """Return why nothing is written, or nothing served either; None while all is well."""
        if self._fault is None and self._disk.hangs:
            return f"the disk of local segments hangs, {self._settings.directory}"
        return self._fault

    def __len__(self) -> int:
        """Return the number of segments."""
        return sum(map(len, self._used.values()))

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all segments' files."""
        return sum(self.bytes_of_kind.values())

    @property
    def queued_bytes(self) -> int:
        """Return the bytes that wait to be written."""
        return self._writes.queued_bytes

    def count(self, kind: int) -> int:
        """Return the number of segments of a kind."""
        return len(self._used[kind])

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions that have segments."""
        return list(self._partitions)

    def segments(self, partition: TopicPartition) -> list[Segment]:
        """Return a partition's segments by base offset."""
        found = self._partitions.get(partition)
        return [] if found is None else list(found.segments)

    def holds(self, partition: TopicPartition, run: Run) -> bool:
        """Return whether a whole run is here, or is being written, and can be read now."""
        if self._disk.hangs:
            return False
        found, identity, offset = self._partitions.get(partition), identify(run), run.base_offset
        while found is not None and offset <= run.last_offset:
            last_offset = self._covered_until(found, offset, identity)
            if last_offset is None:
                return False
            offset = last_offset + 1
        return found is not None

    # --- reading --------------------------------------------------------------------------------

    async def read(
        self,
        partition: TopicPartition,
        runs: Sequence[Run],
        *,
        from_offset: int,
        max_bytes: int,
        is_first: bool = True,
    ) -> LocalRead:
        """Read whole batches, beginning with the one that contains `from_offset`, as far as known.

        Args:    runs: that the state names now, the first holding `from_offset`.
                 max_bytes: of the answer; the first batch is whole, however large.
                 is_first: whether there are no batches before these in the answer; if there are,
                     the first one must fit, too.
        """
        self.counters.reads += 1
        pieces, is_missing = self._plan(partition, runs, from_offset, max_bytes)
        answer = bytearray(sum(piece.entry.size_bytes for piece in pieces))
        view, size, checked, next_offset = memoryview(answer), 0, 0, from_offset
        for group in _contiguous(pieces):
            end = size + sum(piece.entry.size_bytes for piece in group)
            try:
                is_sound = await self._read_group(group, view[size:end])
            except DiskHangsError:
                is_missing = True
                break
            if not is_sound:
                self.discard(group[0].segment, "damaged")
                is_missing = True
                break
            checked += end - size
            size, next_offset = end, group[-1].entry.last_offset + 1
            if checked >= CHECKED_AT_ONCE:
                checked = 0
                await asyncio.sleep(0)
        if not size:
            return LocalRead(view[:0], from_offset, True)
        begin = _skip(view[:size], from_offset)
        if size - begin > max_bytes:  # then it is one range
            size, next_offset = _cut(view[:size], begin, max_bytes, is_first=is_first)
            is_missing = False
        self.counters.hits += 1
        self.counters.read_bytes += size - begin
        return LocalRead(view[begin:size].toreadonly(), next_offset, is_missing)

    def _plan(
        self, partition: TopicPartition, runs: Sequence[Run], from_offset: int, max_bytes: int
    ) -> tuple[list[_Piece], bool]:
        """Return the ranges that answer a read, and whether the next one is missing here."""
        known = self._partitions.get(partition)
        pieces: list[_Piece] = []
        if known is None:
            return pieces, True
        offset, left = from_offset, max_bytes
        segment: Segment | None = None
        index = 0
        for run in runs:
            identity = identify(run)
            while offset <= run.last_offset:
                entry = None if segment is None else segment.covering(index, offset, identity)
                if entry is None:
                    place = self._find(known, offset, identity)
                    if place is None:
                        return pieces, True
                    segment, index = place
                    self._use(segment)
                    entry = entry_at(segment.entries, index)
                if pieces and entry.size_bytes > left:
                    return pieces, False
                assert segment is not None, f"a range of no segment: {entry}"
                pieces.append(_Piece(segment, entry))
                left -= entry.size_bytes
                offset = entry.last_offset + 1
                index += 1  # mostly the next range is the next one of the file
        return pieces, False

    def _find(self, known: _Partition, offset: int, identity: bytes) -> tuple[Segment, int] | None:
        """Return the segment and index of the readable range of a run at an offset."""
        for segment in self._candidates(known, offset):
            index = segment.find(offset, identity)
            if index is not None:
                return segment, index
        return None

    def _covered_until(self, known: _Partition, offset: int, identity: bytes) -> int | None:
        """Return the last offset of the range that has this offset of a run, if there is one."""
        for segment in self._candidates(known, offset):
            index = segment.find(offset, identity, readable=False)
            if index is not None:
                return entry_at(segment.entries, index).last_offset
        return None

    def _candidates(self, known: _Partition, offset: int) -> Iterator[Segment]:
        behind = bisect_right(known.segments, offset, key=_base_offset)
        for segment in reversed(known.segments[max(0, behind - LOOKED_AT) : behind]):
            if offset < segment.end_offset:
                yield segment

    async def _read_group(self, group: Sequence[_Piece], target: memoryview) -> bool:
        """Read ranges that lie side by side; return whether all bytes are as they were written.

        Raises:  DiskHangsError.
        """
        segment, position = group[0].segment, group[0].entry.position
        try:
            count = await self._disk.read(segment, position, target)
        except OSError as error:
            if not segment.is_discarded:
                log.warning("segment=%s action=read error=%r", segment.path, reason_of(error))
            return False
        if count < len(target):
            return False
        return self._are_sound(group, target)

    def _are_sound(self, group: Sequence[_Piece], data: memoryview) -> bool:
        """Return whether each range's bytes have its checksum."""
        begin = 0
        for _, entry in group:
            end = begin + entry.size_bytes
            if crc32c(data[begin:end]) != entry.crc:
                return False
            begin = end
        return True

    # --- filling --------------------------------------------------------------------------------

    def fill(
        self, partition: TopicPartition, batches: Sequence[FinalBatches], *, is_tail: bool
    ) -> None:
        """Keep batches as a consumer gets them, unless they are here already.

        Args:  is_tail: whether they are read near the partition's end, where everybody reads.
        """
        if not self._writes.is_running or asyncio.get_running_loop().time() < self._retry_at:
            return
        kind = TAIL if is_tail else CATCH_UP
        for found in batches:
            if self.keeps(partition, found.first_offset, found.run.last_offset):
                self._fill_run(partition, found, kind)

    def can_fill(self, size_bytes: int) -> bool:
        """Return whether so many bytes more need no other segment's place, or a faster disk.

        That place is what catch-up readers may have.
        """
        limit = self._settings.max_bytes
        is_within = self.bytes_of_kind[CATCH_UP] + size_bytes <= limit // 2
        return is_within and self.size_bytes + size_bytes <= limit

    def _fill_run(self, partition: TopicPartition, found: FinalBatches, kind: int) -> None:
        identity, ends = identify(found.run), found.ends
        first, begin, offset = 0, 0, found.first_offset
        while first < len(ends):
            known = self._partitions.get(partition)
            covered = None if known is None else self._covered_until(known, offset, identity)
            end = first + 1
            if covered is not None:
                while end < len(ends) and ends[end][0] <= covered + 1:
                    end += 1
            else:
                while end < len(ends) and ends[end][1] - begin <= RANGE_BYTES:
                    end += 1
                data = found.data[begin : ends[end - 1][1]]
                self._append(partition, identity, offset, ends[end - 1][0] - 1, data, kind)
            offset, begin = ends[end - 1]
            first = end

    def _append(
        self,
        partition: TopicPartition,
        identity: bytes,
        first_offset: int,
        last_offset: int,
        data: memoryview,
        kind: int,
    ) -> None:
        """Queue one range to be written to the segment that takes it."""
        if not self._writes.has_room(len(data)):
            self.counters.dropped_bytes += len(data)
            return
        segment = self._taking(partition, first_offset, kind)
        before = segment.size_bytes
        position, crc = segment.log_bytes, crc32c(data)
        entry = Entry(first_offset, last_offset, position, len(data), crc, identity)
        self._writes.add(segment, entry, data)
        self.bytes_of_kind[kind] += segment.size_bytes - before
        self._entries += 1
        self._use(segment)
        self._make_room()

    def _taking(self, partition: TopicPartition, first_offset: int, kind: int) -> Segment:
        """Return the open segment that takes a range from this offset on, or begin one."""
        now = asyncio.get_running_loop().time()
        known = self._partitions.get(partition)
        for segment in [] if known is None else list(known.open):
            is_full = segment.log_bytes >= self._segment_bytes
            is_long = segment.entry_count >= SEGMENT_ENTRIES
            if is_full or is_long or now - segment.opened_at >= SEGMENT_S:
                self._seal(segment)
        fitting = [
            segment
            for segment in ([] if known is None else known.open)
            if segment.header.kind == kind and segment.end_offset <= first_offset
        ]
        if fitting:
            return max(fitting, key=lambda segment: segment.end_offset)
        return self._new(partition, first_offset, kind, now)

    def _new(self, partition: TopicPartition, base_offset: int, kind: int, now: float) -> Segment:
        """Begin a segment; one with its name has other runs' batches there, and goes."""
        for segment in self.segments(partition):
            if segment.base_offset == base_offset:
                self.discard(segment, "stale")
        owner = owner_of(self._settings.cluster_id, partition, base_offset)
        directory = self._settings.directory / partition.directory_name
        segment = Segment(partition, base_offset, directory, Header(kind, self._wall_ms(), owner))
        self._insert(segment, now)
        known = self._partitions[partition]
        segment.is_open, segment.opened_at = True, now
        known.open.append(segment)
        if len(known.open) > MAX_OPEN:
            self._seal(known.open[0])
        return segment

    def _insert(self, segment: Segment, now: float) -> None:
        known = self._partitions.setdefault(segment.partition, _Partition())
        insort(known.segments, segment, key=_base_offset)
        kind = segment.header.kind
        self._used[kind][segment] = now
        self.bytes_of_kind[kind] += segment.size_bytes
        self._entries += segment.entry_count

    def _use(self, segment: Segment) -> None:
        used = self._used[segment.header.kind]
        used[segment] = asyncio.get_running_loop().time()
        used.move_to_end(segment)
        segment.was_used = True

    def _seal(self, segment: Segment) -> None:
        if segment.is_open:
            segment.is_open = False
            self._partitions[segment.partition].open.remove(segment)

    # --- discarding -----------------------------------------------------------------------------

    def discard(self, segment: Segment, reason: str) -> None:
        """Serve a segment no more, and delete its files."""
        if segment.is_discarded:
            return
        self._seal(segment)
        segment.is_discarded = True
        known = self._partitions[segment.partition]
        known.segments.remove(segment)
        if not known.segments:
            del self._partitions[segment.partition]
        kind = segment.header.kind
        del self._used[kind][segment]
        self.bytes_of_kind[kind] -= segment.size_bytes
        self._entries -= segment.entry_count
        self.counters.discarded[reason] += 1
        self._disk.delete(segment)

    def _make_room(self) -> None:
        """Discard the longest unused segments past the bounds of bytes and entries."""
        max_bytes = self._settings.max_bytes
        tail, catch_up = self._used[TAIL], self._used[CATCH_UP]
        while self.bytes_of_kind[CATCH_UP] > max_bytes // 2 and len(catch_up) > 1:
            self.discard(next(iter(catch_up)), "budget")
        while (self.size_bytes > max_bytes or self._entries > MAX_ENTRIES) and len(self) > 1:
            oldest = [next(iter(used.items())) for used in (tail, catch_up) if used]
            self.discard(min(oldest, key=lambda pair: pair[1])[0], "budget")

    # --- writing --------------------------------------------------------------------------------

    def _on_written(self, size_bytes: int) -> None:
        self.counters.written_bytes += size_bytes
        if self._fault is not None:
            log.info("directory=%s action=write fault=none", self._settings.directory)
            self._fault = None

    def _on_failed_write(self, error: OSError, segments: Sequence[Segment]) -> None:
        """Write nothing for a while; keep the ranges whose write has ended.

        Files that somebody has deleted are no fault of the disk: their segments alone are given up.
        """
        is_lost = isinstance(error, FileNotFoundError) and bool(segments[0].readable)
        if is_lost or isinstance(error, NoRegularFileError):
            self.discard(segments[0], "damaged")
            segments = segments[1:]
        else:
            self._pause(error)
        for segment in segments:
            if not segment.is_discarded:
                self._give_up(segment)

    def _pause(self, error: OSError) -> None:
        self.counters.failures += 1
        self._retry_at = asyncio.get_running_loop().time() + RETRY_S
        directory, reason = self._settings.directory, reason_of(error)
        self._fault = f"local segments are not filled, {directory}: {reason}"
        log.error("action=write error=%r", self._fault)

    def _give_up(self, segment: Segment) -> None:
        """Seal a segment at the end of its readable ranges; discard it if it has none."""
        if not segment.readable:
            self.discard(segment, "unwritten")
            return
        self._seal(segment)
        before, count = segment.size_bytes, segment.entry_count
        del segment.entries[segment.readable * ENTRY_BYTES :]
        last = entry_at(segment.entries, segment.readable - 1)
        segment.log_bytes, segment.end_offset = last.end_position, last.last_offset + 1
        self.bytes_of_kind[segment.header.kind] -= before - segment.size_bytes
        self._entries -= count - segment.entry_count

    def note_times(self) -> None:
        """Note when segments were used, as their files' time of modification, for a restart."""
        used = [
            segment
            for kind in KIND_NAMES
            for segment in self._used[kind]
            if segment.was_used and not segment.is_open
        ]
        for segment in used:
            segment.was_used = False
        if used:
            self._disk.touch(used)


def _base_offset(segment: Segment) -> int:
    return segment.base_offset


def _contiguous(pieces: Sequence[_Piece]) -> Iterator[list[_Piece]]:
    """Group ranges that one read of one file covers."""
    group: list[_Piece] = []
    for piece in pieces:
        if group and (
            piece.segment is not group[-1].segment
            or piece.entry.position != group[-1].entry.end_position
        ):
            yield group
            group = []
        group.append(piece)
    if group:
        yield group


def _skip(data: memoryview, from_offset: int) -> int:
    """Return where the batch that contains an offset begins, or the next one behind it."""
    return next(
        position
        for position, header, _ in iter_batches(data, verify_crc=False)
        if header.end_offset > from_offset
    )


def _cut(data: memoryview, begin: int, max_bytes: int, *, is_first: bool) -> tuple[int, int]:
    """Return the end of the whole batches that fit, and the offset behind them.

    Args:  is_first: whether there is at least one, however large.
    """
    end = next_offset = 0
    for position, header, batch in iter_batches(data[begin:], verify_crc=False):
        if (end or not is_first) and position + len(batch) > max_bytes:
            break
        end, next_offset = position + len(batch), header.end_offset
    return begin + end, next_offset


__all__ = [
    "LocalRead",
    "LocalSegments",
    "LocalSegmentsCounters",
    "LocalSegmentsSettings",
]
