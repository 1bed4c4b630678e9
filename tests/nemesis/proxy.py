"""A network that can be broken: between any two nodes, in each direction, without any privilege.

Node a reaches node b only through the proxy of the link a -> b, which is what a's list of voters
names. The link carries the connections that a dials; their bytes go both ways. So *traffic* from a
to b is what flows up the link a -> b and down the link b -> a, and each fault is about traffic:

    hold(a, b)          a black hole: nothing arrives, not even that a connection ended. What is
                        held arrives after `heal`, as TCP would send it again
    drip(a, b, rate)    so many bytes per second
    cut(a, b)           both ways: connections are reset, new ones too

One difference from a real network: the proxy of a dead node accepts, then resets, where the dead
node's own port would refuse.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final

SLICE_BYTES: Final = 128  # what a slow way passes on at once, at least
SLICES_PER_S: Final = 50  # of a way that is faster than slow
READ_BYTES: Final = 64 * 1024
AT_ONCE: Final = struct.pack("ii", 1, 0)  # of SO_LINGER: closing is a reset


class _Way:
    """Traffic from one node to another."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.opened.set()
        self.bytes_per_s: float | None = None


class Links:
    """Proxies between all pairs of nodes; a context manager. Thread-safe from outside."""

    def __init__(self, targets: Mapping[int, int]) -> None:
        """Begin to listen. `targets`: the port on loopback where each node really listens."""
        self._targets = dict(targets)
        self._pairs = [(a, b) for a in targets for b in targets if a != b]
        self._ways = {pair: _Way() for pair in self._pairs}
        self._cut: set[frozenset[int]] = set()
        self._tunnels: dict[asyncio.Task[None], frozenset[int]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._thread.start()
        self._servers: list[asyncio.Server] = []
        self.ports: dict[tuple[int, int], int] = {}
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()

    # --- faults -------------------------------------------------------------------------------

    def hold(self, a: int, b: int) -> None:
        """Traffic from a to b goes nowhere, and nobody is told."""
        self._do(self._ways[a, b].opened.clear)

    def drip(self, a: int, b: int, bytes_per_s: float) -> None:
        """Traffic from a to b comes slowly."""
        self._do(lambda: setattr(self._ways[a, b], "bytes_per_s", bytes_per_s))

    def cut(self, a: int, b: int) -> None:
        """Reset what is between a and b, now and until `heal`."""
        pair = frozenset((a, b))

        def act() -> None:
            self._cut.add(pair)
            for tunnel, between in self._tunnels.items():
                if between == pair:
                    tunnel.cancel()

        self._do(act)

    def heal(self) -> None:
        """Everything flows again."""

        def act() -> None:
            self._cut.clear()
            for way in self._ways.values():
                way.bytes_per_s = None
                way.opened.set()

        self._do(act)

    def close(self) -> None:
        """End all connections and listen no more."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Links:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # --- on the loop --------------------------------------------------------------------------

    def _do(self, act: Callable[[], object]) -> None:
        async def on_loop() -> None:
            act()

        asyncio.run_coroutine_threadsafe(on_loop(), self._loop).result()

    async def _listen(self) -> None:
        for a, b in self._pairs:

            async def accept(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, a: int = a, b: int = b
            ) -> None:
                task = asyncio.current_task()
                assert task is not None
                self._tunnels[task] = frozenset((a, b))
                try:
                    await self._tunnel(a, b, reader, writer)
                finally:
                    del self._tunnels[task]

            server = await asyncio.start_server(accept, "127.0.0.1", 0)
            self._servers.append(server)
            self.ports[a, b] = server.sockets[0].getsockname()[1]

    async def _tunnel(
        self, a: int, b: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Carry one connection that a dialled, until either end is done with it."""
        ends = [writer.transport]
        pumps: list[asyncio.Task[None]] = []
        try:
            if frozenset((a, b)) in self._cut:
                return
            await self._ways[a, b].opened.wait()
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._targets[b])
            ends.append(far_writer.transport)
            pumps = [
                asyncio.create_task(_pump(self._ways[a, b], reader, far_writer)),
                asyncio.create_task(_pump(self._ways[b, a], far_reader, writer)),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        except (OSError, asyncio.CancelledError):
            pass  # nobody listens there, or the link was cut: the other end is reset
        finally:
            for pump in pumps:
                pump.cancel()
            for end in ends:
                with contextlib.suppress(OSError):  # closed by itself
                    one = end.get_extra_info("socket")
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
                end.abort()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        running = asyncio.all_tasks() - {asyncio.current_task()}
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _pump(way: _Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry one direction of a connection; done when its end has arrived too."""
    with contextlib.suppress(OSError):
        while data := await reader.read(READ_BYTES):
            while data:
                await way.opened.wait()
                size = len(data)
                if way.bytes_per_s is not None:
                    size = max(SLICE_BYTES, int(way.bytes_per_s / SLICES_PER_S))
                if way.bytes_per_s is not None:
                    await asyncio.sleep(min(size, len(data)) / way.bytes_per_s)
                writer.write(data[:size])
                await writer.drain()
                data = data[size:]
    await way.opened.wait()
