"""Cuts received bytes into frames, and defines who owns their memory.

A frame is an int32 length, big-endian, and that many bytes. Frames are never written after the
reader returns them, and belong to the caller:

* A loop reads one socket at a time, so all connections of a listener receive into one `Arena`,
  which is free again before the next read: its bytes are copied at once, and frames are cut from
  that copy. An idle connection owns no buffer at all.
* A frame that a read cuts in two continues in a buffer of its own, of just its size, and the read
  ends with the frame: large frames are received without another copy. Above `FIRST_BYTES` the
  buffer starts smaller and doubles, so that a length alone, which costs its sender nothing, does
  not allocate memory.

The trap: small frames are *copied*, to `bytes`. Slicing a memoryview takes longer than slicing
bytes and copying 100 of them (71 ns against 33), and so does every read from it afterwards; a view
would also keep its whole receive buffer alive. Frames above `COPY_BYTES` are memoryviews.

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
Frame: TypeAlias = bytes | memoryview
"""A received frame, or a part of one: bytes if small, else a view. Both slice, compare and unpack
alike; `bytes(frame)` makes either independent."""

Payload: TypeAlias = bytes | bytearray | memoryview | tuple[Buffer, ...] | list[Buffer]
"""Bytes to send: one buffer, or several to be sent one after the other. Views are of bytes (format
"B"), and must not change until they have been sent."""

ARENA_BYTES: Final = 65_536  # stays in the L2 cache
COPY_BYTES: Final = 4_096  # a copy of this much takes about as long as making a view
FIRST_BYTES: Final = 4_194_304  # right-sized at once up to here
FLUSH_BYTES: Final = 65_536  # up to here answers sent together are joined: one write, one memcpy
JOIN_BYTES: Final = 16_384  # a memcpy of this much is cheaper than another iovec

LENGTH: Final = Struct(">i")
_UNSIGNED: Final = Struct(">I")  # reads a negative length as one above every bound
SHORT_LENGTHS: Final = tuple(LENGTH.pack(size) for size in range(COPY_BYTES + 1))
"""Length prefixes that are looked up instead of packed: 15 ns each instead of 50."""

_NOTHING: Final = memoryview(b"")


class Arena:
    """The receive buffer that the connections of one loop share, one read at a time."""

    __slots__ = ("view",)

    def __init__(self) -> None:
        self.view = memoryview(bytearray(ARENA_BYTES))


class FrameReader:
    """Cuts what one connection receives into frames.

    `lend()` returns the buffer for the next bytes, `received(n)` takes the number of bytes received
    and returns the frames that are now complete. After `received`:

    * `error` is set if the bytes after those frames cannot be a frame; nothing more can be read;
    * `wanted` is not 0 if a frame of that size is waiting for `grant()`. Until then nothing may be
      received: so the caller decides whether there is memory for it.
    """

    __slots__ = (
        "_arena",
        "_have",
        "_head",
        "_max",
        "_own",
        "_own_view",
        "_size",
        "_small",
        "error",
        "frames_read",
        "wanted",
    )

    def __init__(self, arena: Arena, *, max_frame_bytes: int) -> None:
        self._arena = arena.view
        self._max = max_frame_bytes
        self._small = min(COPY_BYTES, max_frame_bytes)
        self._head = b""  # the beginning of a frame that has no buffer of its own yet
        self._own: bytearray | None = None  # the buffer of a frame that was cut in two
        self._own_view = _NOTHING
        self._size = 0  # of that frame
        self._have = 0  # bytes of it that are in the buffer
        self.error: BadFrameError | None = None
        self.wanted = 0
        self.frames_read = 0

    @property
    def partial(self) -> bool:
        """Return whether a frame has begun to arrive and is incomplete."""
        return self._own is not None or bool(self._head)

    @property
    def receiving(self) -> bool:
        """Return whether an incomplete frame is being received into its own buffer."""
        return self._own is not None

    def limit(self, max_frame_bytes: int) -> None:
        """Set the maximum size in bytes of the frames that are read from now on."""
        self._max = max_frame_bytes
        self._small = min(COPY_BYTES, max_frame_bytes)

    def discard(self) -> None:
        """Drop the frame that is being received, because no further bytes will be read."""
        self._own, self._own_view, self._head, self.wanted = None, _NOTHING, b"", 0

    def lend(self) -> memoryview:
        """Return the buffer for the connection's next bytes, valid until `received` is called."""
        if self._own is None:
            return self._arena
        if self._have == len(self._own):
            self._grow()
        return self._own_view[self._have :]

    def received(self, count: int) -> list[Frame]:
        """Process `count` bytes received into the lent buffer, and return the completed frames."""
        if self._own is not None:
            return self._continue(count)
        assert not self.wanted, f"{count} bytes received while {self.wanted} wait for a grant"
        data = self._arena[:count].tobytes()
        if self._head:
            data = self._head + data
            self._head = b""
        return self._split(data)

    def grant(self) -> None:
        """Allocate a buffer for the incomplete frame that waits for memory."""
        assert self.wanted, "no frame is waiting"
        self._size, self.wanted = self.wanted, 0
        self._have = len(self._head) - 4
        self._own = bytearray(min(self._size, max(FIRST_BYTES, self._have)))
        self._own_view = memoryview(self._own)
        self._own_view[: self._have] = self._head[4:]
        self._head = b""

    def _split(self, data: bytes) -> list[Frame]:
        frames: list[Frame] = []
        append, unpack = frames.append, _UNSIGNED.unpack_from
        start, end, small = 0, len(data), self._small
        while end - start >= 4:
            (size,) = unpack(data, start)
            first = start + 4
            stop = first + size
            if stop > end or size > small:
                if size > self._max:
                    self.error = explain_length(data[start : start + 8], self._max)
                    break
                if stop > end:
                    self.wanted = size
                    break
                append(memoryview(data)[first:stop])
            else:
                append(data[first:stop])
            start = stop
        if start < end and self.error is None:
            self._head = data[start:]
        self.frames_read += len(frames)
        return frames

    def _continue(self, count: int) -> list[Frame]:
        self._have += count
        if self._have < self._size:
            return []
        frame = self._own_view
        self._own, self._own_view = None, _NOTHING
        self.frames_read += 1
        return [frame if self._size > COPY_BYTES else frame.tobytes()]

    def _grow(self) -> None:
        assert self._own is not None, "only a frame's own buffer grows"
        assert self._have < self._size, "a complete frame was not handed out"
        grown = bytearray(min(self._size, 2 * self._have))
        grown[: self._have] = self._own  # not in place: the loop may still hold a view of it
        self._own, self._own_view = grown, memoryview(grown)


def explain_length(prefix: bytes, max_frame_bytes: int) -> BadFrameError:
    """Return the error for a frame length out of bounds, with a guess at the peer's protocol.

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


def length_prefix(size: int) -> bytes:
    """Return the four-byte length prefix of a frame of `size` bytes."""
    return SHORT_LENGTHS[size] if size <= COPY_BYTES else LENGTH.pack(size)


def gather(parts: list[Buffer]) -> Sequence[Buffer]:
    """Join small neighbouring buffers and keep large buffers, so that writes are cheap."""
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
