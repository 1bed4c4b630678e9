"""Reading objects: equal reads share one GET, neighbours are merged, what was read is kept a while.

Consumers of one partition read the same bytes within moments of each other, and an object has many
partitions' bytes side by side. So reads of one turn of the event loop are looked at together, and a
read that lies inside one that is under way, or kept, asks the store for nothing.

The surprise: a piece is kept as long as it is the memory it came in; a read is a view into it. What
the bound counts is what the cache itself holds on to.

A broker that has written an object puts it in here: consumers who keep up read what was just
written, mostly from the same broker, and then no object is fetched at all.

Source: KIP-1163, Consume path (caching reads); docs/design/broker.md#fetch.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from diskless.stores import ByteRange, ObjectStorage, StorageError
from records.compression import Buffer

READ_S: Final = 20.0
"""How long who reads waits for the store: less than clients wait for an answer."""

MERGE_GAP_BYTES: Final = 128 * 1024
"""Bytes nobody asked for that are read rather than asking twice: a GET costs milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """Bounds of a cache."""

    max_bytes: int = 256 * 1024 * 1024  # of pieces kept
    max_pieces: int = 50_000  # each costs about a kilobyte besides
    max_get_bytes: int = 16 * 1024 * 1024  # of a merged GET; a single read may be larger
    max_gets: int = 16  # at the same time


@dataclass(slots=True)
class CacheCounters:
    """What a cache did, for metrics."""

    reads: int = 0
    hits: int = 0  # reads that asked the store for nothing
    gets: int = 0
    get_bytes: int = 0


class _Piece:
    """Bytes [offset, end) of an object: here, or on their way."""

    __slots__ = ("data", "end", "key", "notes", "offset", "parts")

    def __init__(self, key: str, offset: int, end: int) -> None:
        self.key = key
        self.offset = offset
        self.end = end
        self.notes: dict[object, object] = {}  # what readers found out about these bytes
        self.parts: list[_Piece] = []  # pieces that were wanted, and became this one
        self.data: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()

    def arrived(self, data: memoryview) -> None:
        self.data.set_result(data)
        for part in self.parts:
            part.arrived(data[part.offset - self.offset : part.end - self.offset])

    def failed(self, error: BaseException) -> None:
        self.data.set_exception(error)
        self.data.exception()  # whoever reads hears it; if nobody does any more, nobody need
        for part in self.parts:
            part.failed(error)


class ObjectCache:
    """Reads of one store. Belongs to the event loop."""

    def __init__(self, store: ObjectStorage, settings: CacheSettings | None = None) -> None:
        self.counters = CacheCounters()
        self.kept_bytes = 0
        self._store = store
        self._settings = settings or CacheSettings()
        self._pieces: dict[str, list[_Piece]] = {}  # kept, under way or wanted, by object
        self._kept: OrderedDict[_Piece, None] = OrderedDict()  # the longest unused first
        self._wanted: dict[str, list[_Piece]] = {}  # of this turn
        self._gets = asyncio.Semaphore(self._settings.max_gets)
        self._tasks: set[asyncio.Task[None]] = set()

    async def read(self, key: str, byte_range: ByteRange) -> memoryview:
        """The bytes of the range. Raises StorageError and its kinds."""
        data, _ = await self.read_noted(key, byte_range)
        return data

    async def read_noted(
        self, key: str, byte_range: ByteRange
    ) -> tuple[memoryview, dict[object, object]]:
        """The same, and what readers noted of these bytes, for as long as they are kept."""
        offset, end = byte_range.offset, byte_range.offset + byte_range.size
        self.counters.reads += 1
        piece = self._find(key, offset, end)
        if piece is None:
            piece = self._want(key, offset, end)
        else:
            self.counters.hits += 1
            if piece in self._kept:
                self._kept.move_to_end(piece)
        if not piece.data.done():
            await asyncio.wait((piece.data,), timeout=READ_S)
            if not piece.data.done():
                raise StorageError(key, f"the store has not answered within {READ_S:g} s")
        data = piece.data.result()
        return data[offset - piece.offset : end - piece.offset], piece.notes

    def add(self, key: str, data: Buffer) -> None:
        """Keep a whole object that this broker has just written: its readers are near."""
        if self._find(key, 0, len(data)) is None and len(data) <= self._settings.max_bytes:
            piece = _Piece(key, 0, len(data))
            self._pieces.setdefault(key, []).append(piece)
            piece.arrived(memoryview(data).toreadonly())
            self._keep(piece, len(data))

    def forget(self, key: str) -> None:
        """Keep nothing of an object: its bytes were wrong, or it is deleted."""
        for piece in list(self._pieces.get(key, ())):
            if piece in self._kept:
                self._drop(piece)

    async def close(self) -> None:
        """Stop reading; who waits hears of it."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- pieces ---------------------------------------------------------------------------------

    def _find(self, key: str, offset: int, end: int) -> _Piece | None:
        for piece in self._pieces.get(key, ()):
            if piece.offset <= offset and end <= piece.end:
                return piece
        return None

    def _want(self, key: str, offset: int, end: int) -> _Piece:
        if not self._wanted:
            asyncio.get_running_loop().call_soon(self._ask)
        piece = _Piece(key, offset, end)
        self._wanted.setdefault(key, []).append(piece)
        self._pieces.setdefault(key, []).append(piece)
        return piece

    def _ask(self) -> None:
        """Ask for what was wanted in this turn, neighbours together."""
        wanted, self._wanted = self._wanted, {}
        for key, pieces in wanted.items():
            for group in self._neighbours(pieces):
                whole = group[0] if len(group) == 1 else self._merge(key, group)
                task = asyncio.get_running_loop().create_task(self._get(whole))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def _merge(self, key: str, group: list[_Piece]) -> _Piece:
        """One piece instead of several, which get their bytes from it."""
        whole = _Piece(key, group[0].offset, max(piece.end for piece in group))
        whole.parts = group
        self._pieces[key].append(whole)
        for piece in group:
            self._pieces[key].remove(piece)
        return whole

    def _neighbours(self, pieces: list[_Piece]) -> Iterable[list[_Piece]]:
        group: list[_Piece] = []
        end = 0
        for piece in sorted(pieces, key=lambda piece: piece.offset):
            near = group and piece.offset <= end + MERGE_GAP_BYTES
            if near and piece.end - group[0].offset <= self._settings.max_get_bytes:
                group.append(piece)
                end = max(end, piece.end)
                continue
            if group:
                yield group
            group, end = [piece], piece.end
        if group:
            yield group

    async def _get(self, piece: _Piece) -> None:
        size = piece.end - piece.offset
        try:
            async with self._gets:
                self.counters.gets += 1
                self.counters.get_bytes += size
                data = await self._store.fetch(piece.key, ByteRange(piece.offset, size))
        except asyncio.CancelledError:
            self._remove(piece)
            piece.failed(StorageError(piece.key, "the cache was closed"))
            raise
        except Exception as error:
            self._remove(piece)
            piece.failed(error)
            return
        piece.arrived(memoryview(data).toreadonly())
        self._keep(piece, size)

    def _keep(self, piece: _Piece, size: int) -> None:
        self._kept[piece] = None
        self.kept_bytes += size
        bounds = self._settings
        while self._kept and (
            self.kept_bytes > bounds.max_bytes or len(self._kept) > bounds.max_pieces
        ):
            self._drop(next(iter(self._kept)))

    def _drop(self, piece: _Piece) -> None:
        del self._kept[piece]
        self.kept_bytes -= piece.end - piece.offset
        self._remove(piece)

    def _remove(self, piece: _Piece) -> None:
        pieces = self._pieces[piece.key]
        pieces.remove(piece)
        if not pieces:
            del self._pieces[piece.key]
