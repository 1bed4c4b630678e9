"""Bounds of the resources that peers may use, all of the server side in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final

UNLIMITED: Final = 2**31 - 1
"""Connections of one address, where they are not limited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one listener, all inclusive and positive, with Kafka's setting where it has one.

    A frame begun is always finished if its peer keeps sending, and a connection with nothing in
    flight always gets one request of up to 64 KiB, however full the shared memory is. So received
    requests stay below `memory_bytes + max_frame_bytes + max_connections * 192 KiB` (a request in
    flight, one cut in two, and what came after it), whatever peers do.
    """

    max_frame_bytes: int = 104_857_600
    """socket.request.max.bytes: a longer frame closes the connection before memory is taken."""

    max_connections: int = 10_000
    """max.connections: a further one is closed as soon as it is accepted."""

    max_connections_per_ip: int = UNLIMITED
    """max.connections.per.ip: a further one of an address is closed as soon as it is accepted."""

    max_connections_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    """max.connections.per.ip.overrides: the same by address."""

    max_in_flight_requests: int = 4_096
    """Requests of one connection without an answer; past that, its socket is not read."""

    max_in_flight_bytes: int = 33_554_432
    """The same in bytes of requests, one frame more at most."""

    memory_bytes: int = 268_435_456
    """queued.max.request.bytes: unanswered requests and frames being received, all connections."""

    write_high_water_bytes: int = 1_048_576
    """Answers that a peer has not read; past that, its requests are not read either."""

    send_buffer_bytes: int | None = 262_144
    """socket.send.buffer.bytes: about what the kernel keeps of a connection's answers; None: its
    choice, mostly 4 MiB. One `send` of so much takes milliseconds, and other requests wait."""

    idle_ms: int = 600_000
    """connections.max.idle.ms: the longest without a byte received or an answer due."""

    stall_ms: int = 10_000
    """The time in which a peer must move `stall_bytes`, or finish, while in the middle of a frame
    or with answers to read."""

    stall_bytes: int = 10_240
    """The bytes that a peer must move in `stall_ms`: by default 1 KiB/s at least."""

    max_handshakes: int = 1_000
    """TLS handshakes of one listener that are not done; a further connection is closed at once."""

    max_handshakes_per_second: int = 200
    """esker.listener.max.handshakes.per.second: TLS handshakes begun; further ones wait."""

    handshake_timeout_ms: int = 10_000
    """The longest that a TLS handshake and a SASL authentication may take, each."""

    max_unauthenticated_frame_bytes: int = 524_288
    """sasl.server.max.receive.size: a longer frame before authentication closes the connection."""

    def limits_addresses(self) -> bool:
        """Return whether the connections of an address are limited at all."""
        return self.max_connections_per_ip < UNLIMITED or bool(
            self.max_connections_per_ip_overrides
        )

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, int) and value < 1 and each.name != "max_connections_per_ip":
                raise ValueError(f"{each.name}={value}: must be at least 1")
        if self.max_frame_bytes > 0x1000_0000:
            # 16 03 01 (TLS), "GET " and their like must never pass for a length
            raise ValueError(f"max_frame_bytes={self.max_frame_bytes}: at most {0x1000_0000}")
