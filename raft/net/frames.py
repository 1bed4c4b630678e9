"""From bytes to frames: who owns the memory that frames point into.

A frame is an int32 length, big-endian, and so many bytes. The reader hands them out as memoryviews
*without copying* and without ever writing to them again:

* A loop reads one socket at a time, so all connections of a listener borrow one `Arena`. It lends
  its unused end; what has been received there is never written again, so views into it stay good
  for as long as somebody holds them. An idle connection owns no buffer at all.
* When the arena's block is used up, it is used again only if nobody looks at it any more; otherwise
  a new block takes its place. The block itself answers that: a bytearray with live views refuses to
  be resized (BufferError). So a forgotten view costs memory, never correctness.
* A frame that a read cuts in two continues in a buffer of its own, of just its size. What was
  already there (less than one block) is copied, once; the rest is received straight into it, and
  the read stops where the frame does. Above `FIRST_BYTES` the buffer starts smaller and doubles, so
  that a length alone, which costs its sender nothing, does not make us take memory.

The surprise: keeping a small frame keeps its whole block (64 KiB). Whoever stores a frame beyond
its answer copies it: `bytes(frame)`.

This needs a loop that reads only when the socket has data (asyncio's selector loop, uvloop), not
one that lends the buffer to the kernel for later (Windows' proactor).

Source: the Kafka protocol guide, "Network"; size checks as upstream's NetworkReceive.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, TypeAlias

from raft.net.errors import BadFrameError, Reason

Buffer: TypeAlias = bytes | bytearray | memoryview
Payload: TypeAlias = bytes | bytearray | memoryview | tuple[Buffer, ...] | list[Buffer]
"""What can be sent: one buffer, or several to be sent one after the other. Views are of bytes
(format "B"), and nobody changes what is in them until it has been sent."""

BLOCK_BYTES: Final = 65_536  # stays in the L2 cache; half a microsecond of each read at most
LEAST_LOAN_BYTES: Final = 8_192  # below this a read would often be cut short
FIRST_BYTES: Final = 4_194_304  # right-sized at once up to here
JOIN_BYTES: Final = 16_384  # a memcpy of this much is cheaper than another iovec

LENGTH: Final = Struct(">i")
_read_length = LENGTH.unpack_from
_NOTHING: Final = memoryview(b"")


class Arena:
    """The receive buffer that the connections of one loop share, one read at a time."""

    __slots__ = ("_block", "blocks", "free_from", "view")

    def __init__(self) -> None:
        self.blocks = 0  # taken so far; a counter for tests and metrics
        self._renew()

    def lend(self) -> memoryview:
        """Memory for the next read: at least `LEAST_LOAN_BYTES`, nobody else's."""
        if BLOCK_BYTES - self.free_from < LEAST_LOAN_BYTES:
            self._recycle()
        return self.view[self.free_from :]

    def _renew(self) -> None:
        self._block = bytearray(BLOCK_BYTES)
        self.view = memoryview(self._block)
        self.free_from = 0
        self.blocks += 1

    def _recycle(self) -> None:
        self.view.release()
        try:
            self._block.pop()  # refused while any view of the block is alive
        except BufferError:
            self._renew()
        else:
            self._block.append(0)
            self.view = memoryview(self._block)
            self.free_from = 0


class FrameReader:
    """Cuts what one connection receives into frames.

    `lend()` is where to put the next bytes, `received(n)` says how many came and returns the
    frames that are now complete. After `received`:

    * `error` is set if the bytes after those frames cannot be a frame; nothing more can be read;
    * `wanted` is not 0 if a frame of that size is waiting for `grant()`. Until then nothing may be
      received: so whoever drives the reader decides whether there is memory for it.
    """

    __slots__ = (
        "_arena",
        "_have",
        "_head",
        "_large",
        "_large_view",
        "_max",
        "_size",
        "error",
        "frames_read",
        "wanted",
    )  # fmt: skip

    def __init__(self, arena: Arena, *, max_frame_bytes: int) -> None:
        self._arena = arena
        self._max = max_frame_bytes
        self._head = b""  # the beginning of a frame that has no buffer of its own yet
        self._large: bytearray | None = None  # the buffer of a frame that was cut in two
        self._large_view = _NOTHING
        self._size = 0  # of that frame
        self._have = 0  # bytes of it that are in the buffer
        self.error: BadFrameError | None = None
        self.wanted = 0
        self.frames_read = 0

    @property
    def partial(self) -> bool:
        """Whether a frame has begun and is not complete."""
        return self._large is not None or bool(self._head)

    def lend(self) -> memoryview:
        """Where the next bytes of this connection go."""
        if self._large is None:
            return self._arena.lend()
        if self._have == len(self._large):
            self._grow()
        return self._large_view[self._have :]

    def received(self, count: int) -> list[memoryview]:
        """Take note of `count` bytes in the memory last lent; return the completed frames."""
        if self._large is not None:
            return self._continue(count)
        arena = self._arena
        start = arena.free_from
        arena.free_from = start + count
        if self._head:
            return self._join_head(arena.view[start : start + count])
        return self._split(arena.view, start, start + count)

    def grant(self) -> None:
        """There is memory for the frame that is `wanted`: receive it."""
        assert self.wanted, "no frame is waiting"
        self._size, self.wanted = self.wanted, 0
        head, self._head = self._head, b""
        self._large = bytearray(min(self._size, max(FIRST_BYTES, len(head) - 4)))
        self._large_view = memoryview(self._large)
        self._have = len(head) - 4
        self._large_view[: self._have] = head[4:]

    def _split(self, view: memoryview, start: int, end: int) -> list[memoryview]:
        frames: list[memoryview] = []
        append = frames.append
        limit = self._max
        while end - start >= 4:
            (size,) = _read_length(view, start)
            stop = start + 4 + size
            if not 0 <= size <= limit:
                self.error = explain_length(bytes(view[start : min(end, start + 8)]), limit)
                break
            if stop > end:
                self.wanted = size
                break
            append(view[start + 4 : stop])
            start = stop
        if start < end and self.error is None:
            self._head = bytes(view[start:end])
        self.frames_read += len(frames)
        return frames

    def _join_head(self, more: memoryview) -> list[memoryview]:
        """The last read ended inside a length: at most 3 bytes to copy in front."""
        assert len(self._head) < 4, f"{len(self._head)} bytes wait for a grant, yet more were read"
        missing = 4 - len(self._head)
        if len(more) < missing:
            self._head += more
            return []
        head, self._head = self._head + more[:missing], b""
        (size,) = LENGTH.unpack(head)
        if not 0 <= size <= self._max:
            self.error = explain_length(head + bytes(more[missing : missing + 4]), self._max)
            return []
        stop = missing + size
        if stop > len(more):
            self.wanted = size
            self._head = head + more[missing:]
            return []
        self.frames_read += 1
        frame = more[missing:stop]
        return [frame, *self._split(more, stop, len(more))]

    def _continue(self, count: int) -> list[memoryview]:
        self._have += count
        if self._have < self._size:
            return []
        frame = self._large_view
        self._large, self._large_view = None, _NOTHING
        self.frames_read += 1
        return [frame]

    def _grow(self) -> None:
        assert self._large is not None, "only a frame's own buffer grows"
        assert self._have < self._size, "a complete frame was not handed out"
        self._large_view.release()
        more = min(self._size - self._have, self._have)
        self._large += bytes(more)
        self._large_view = memoryview(self._large)


def explain_length(prefix: bytes, max_frame_bytes: int) -> BadFrameError:
    """Name what these bytes, which are not a length within bounds, look like instead.

    >>> explain_length(b"GET / HT", 1000).reason
    <Reason.HTTP: 'http_on_kafka_port'>
    """
    (size,) = LENGTH.unpack_from(prefix)
    if prefix[:2] == b"\x16\x03":
        return BadFrameError(Reason.TLS, "a TLS ClientHello; this listener speaks plaintext")
    if prefix.startswith((b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"DELE", b"CONN", b"PRI ")):
        return BadFrameError(Reason.HTTP, "an HTTP request; this listener speaks Kafka's protocol")
    if size < 0:
        return BadFrameError(Reason.NEGATIVE_LENGTH, f"length {size}")
    return BadFrameError(Reason.OVERSIZED, f"length {size}, at most {max_frame_bytes} allowed")


def gather(parts: list[Buffer]) -> Sequence[Buffer]:
    """Join neighbours that are small, keep large buffers as they are: few iovecs, few copies."""
    result: list[Buffer] = []
    small: list[Buffer] = []
    for part in parts:
        if len(part) <= JOIN_BYTES:
            small.append(part)
            continue
        if small:
            result.append(b"".join(small))
            small = []
        result.append(part)
    if small:
        result.append(b"".join(small))
    return result
