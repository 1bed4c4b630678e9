"""Accepts connections, and closes those that are idle or stalled.

One timer checks every connection about once a second (`sweep`): the hot paths only count bytes and
read no clock. A connection whose *peer* has to finish something (a frame half sent, answers not
read) must move `stall_bytes` in `stall_ms`; requests that wait for this server may wait.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from raft.net.authentication import SaslGate
from raft.net.connection import Handler, ServerConnection
from raft.net.connection_set import ConnectionSet
from raft.net.errors import Reason
from raft.net.frames import Arena
from raft.net.limits import Limits
from raft.net.principal import ANONYMOUS
from raft.net.security import ListenerSecurity
from raft.net.tls import Handshakes, ServerTls

log = logging.getLogger("raft.net")

SWEEP_MS: Final = 1_000


class Listener:
    """Accepts connections and hands their requests to `handle`.

    `on_close`, if given, is called once for each connection that ends, at once, before its
    transport is closed, for example to drop deferred requests.
    """

    def __init__(
        self,
        handle: Handler,
        *,
        name: str = "listener",
        limits: Limits | None = None,
        on_close: Callable[[ServerConnection], None] | None = None,
        security: ListenerSecurity | None = None,
        hold_ms: Callable[[str], int] | None = None,
    ) -> None:
        """Create a listener, which accepts connections after `start`.

        Args:  hold_ms: is asked about each accepted connection, by its peer's address and port; a
                   connection is not read for that time, and then closed; 0: it is served.
        """
        self.name = name
        self.limits = limits or Limits()
        self.port = 0
        self.handle = handle
        self.security = security or ListenerSecurity()
        self.gate: SaslGate | None = None
        if self.security.sasl is not None:
            self.gate = SaslGate(
                self.security.sasl,
                handle,
                name=name,
                max_frame_bytes=self.limits.max_frame_bytes,
                lifetime_ms=self.security.session_lifetime_ms,
            )
        self.handshakes = Handshakes(
            self.limits, self._on_failed_handshake, lambda: len(self._shared.connections)
        )
        self._tls_arena = Arena()
        self._hold_ms = hold_ms
        self._shared: ConnectionSet[ServerConnection] = ConnectionSet(
            name, self.limits, on_close, hold_ms if self.security.tls is None else None
        )
        self._servers: list[asyncio.Server] = []
        self._sweep_timer: asyncio.TimerHandle | None = None

    @property
    def connections(self) -> set[ServerConnection]:
        """Return the open connections."""
        return self._shared.connections

    @property
    def received_at(self) -> float:
        """Return the loop time at which part of a large request last arrived, 0.0 if none did."""
        return self._shared.received_at

    @property
    def memory_used(self) -> int:
        """Return the memory in bytes that unfinished requests of all connections use."""
        return self._shared.memory_used

    @property
    def accepted(self) -> int:
        """Return the number of connections accepted since the start."""
        return self._shared.accepted

    @property
    def ended(self) -> Counter[Reason]:
        """Return the number of ended connections by reason."""
        return self._shared.ended

    async def start(
        self,
        host: str,
        port: int,
        *,
        backlog: int = 1_024,
        inherited: Iterable[socket.socket] = (),
    ) -> None:
        """Listen for connections on `port`, and set `self.port` to the port in use.

        Args:  inherited: sockets that listen already, from which this listener accepts as well;
                   it closes them.
        """
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            self._accept, host, port, backlog=backlog, reuse_address=True
        )
        self._servers.append(server)
        self.port = server.sockets[0].getsockname()[1]
        for each in server.sockets:
            self._limit_send_buffers(each.fileno())
        for listening in inherited:
            self._limit_send_buffers(listening.fileno())
            further = await loop.create_server(self._accept, sock=listening, backlog=backlog)
            self._servers.append(further)
        self._schedule_sweep()

    def _limit_send_buffers(self, descriptor: int) -> None:
        """Set the size of the send buffers of the connections that a socket accepts from now on."""
        size_bytes = self.limits.send_buffer_bytes
        if size_bytes is not None:
            # uvloop's own socket objects have no options
            with socket.socket(fileno=os.dup(descriptor)) as listening:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size_bytes)

    def _accept(self) -> ServerConnection | ServerTls:
        """Return the asyncio protocol object of an accepted connection."""
        handle = self.handle if self.gate is None else self.gate.handle
        connection = ServerConnection(self._shared, handle)
        if self.gate is not None:
            connection.allow_frames(self.limits.max_unauthenticated_frame_bytes)
        tls = self.security.tls
        if tls is None:
            return connection
        return ServerTls(
            connection,
            tls.current,
            self.handshakes,
            self._tls_arena,
            self._on_handshake,
            self._hold_ms,
        )

    def _on_handshake(self, side: ServerTls) -> None:
        """Set a connection's principal from the certificate of its peer.

        Raises:  ValueError if no mapping rule applies to it.
        """
        tls = self.security.tls
        assert tls is not None
        connection, ssl_object = side.application, side.get_extra_info("ssl_object")
        assert isinstance(connection, ServerConnection)
        principal, names, expires_at = tls.identify(ssl_object)
        if self.gate is None:
            connection.principal, connection.certificate_names = principal, names
        if expires_at is not None:
            now = asyncio.get_running_loop().time()
            connection.expires_at = now + expires_at - time.time()

    def _on_failed_handshake(self, side: ServerTls, reason: Reason, detail: str) -> None:
        self._shared.accepted += 1
        connection = side.application
        assert isinstance(connection, ServerConnection)
        self._shared.count_end(connection, reason, detail)

    async def close(self, *, drain_ms: int = 0) -> None:
        """Stop accepting connections, wait up to `drain_ms` for responses, then close them all."""
        if not self._servers:
            return
        shared = self._shared
        for server in self._servers:
            server.close()
        shared.draining = True
        self.handshakes.close()
        for connection in tuple(shared.connections):
            connection.close_if_drained()
        if shared.connections and drain_ms:
            shared.all_closed.clear()
            try:
                await asyncio.wait_for(shared.all_closed.wait(), drain_ms / 1_000)
            except TimeoutError:
                log.info("listener=%s drained=no left=%d", self.name, len(shared.connections))
        for connection in tuple(shared.connections):
            connection.abort(Reason.SHUTDOWN)
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        self._servers.clear()
        while shared.connections:  # their connection_lost is due in the next tick
            await asyncio.sleep(0)

    def sweep(self, now: float) -> None:
        """Close connections that are idle or stalled at loop time `now`, in seconds."""
        authenticate_s = self.limits.handshake_timeout_ms / 1_000
        for connection in tuple(self._shared.connections):
            if connection.expires_at is not None and now >= connection.expires_at:
                connection.close(Reason.EXPIRED, "the peer's certificate has expired")
            elif (
                self.gate is not None
                and connection.principal is ANONYMOUS
                and now - connection.accepted_at > authenticate_s
            ):
                connection.abort(Reason.HANDSHAKE_STALLED, "not authenticated in time")
            else:
                connection.check_progress(now)
        self.handshakes.sweep(now)
        self._shared.reset_log_limit()

    def _schedule_sweep(self) -> None:
        every_ms = min(SWEEP_MS, self.limits.stall_ms / 2, self.limits.idle_ms / 2)
        loop = asyncio.get_running_loop()
        self._sweep_timer = loop.call_later(every_ms / 1_000, self._on_sweep_timer)

    def _on_sweep_timer(self) -> None:
        self.sweep(asyncio.get_running_loop().time())
        self._schedule_sweep()
