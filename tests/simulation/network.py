"""A network of TCP connections: in order within one, in any order between two, and unreliable.

What TCP allows is what happens here. Bytes of one connection arrive in order or not at all; a lost
packet is sent again later and holds up what follows it; a cut that lasts ends in a reset; a process
that was killed has its connections reset by its kernel, a machine that lost its power says nothing
until it is back; a dial is answered, refused, or nobody answers. What was sent before a connection
was closed may still arrive: so an old connection's request can be served after a newer one's, and
that is how requests are duplicated and reordered. A response can come long after its request was
given up.

A cut is one-way: `cut` holds (from, to). Requests travel as they are, or as Kafka's bytes, as the
courier (`tests.simulation.courier`) decides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.world import MS, SECOND, World

if TYPE_CHECKING:
    from tests.simulation.node import Process

REQUEST: Final = 0
RESPONSE: Final = 1
FIN: Final = 2
RESET: Final = 3
ACCEPTED: Final = 4
REFUSED: Final = 5

RETRANSMIT_US: Final = 200 * MS
SYN_RETRY_US: Final = SECOND
DIAL_TIMEOUT_US: Final = 3 * SECOND
GIVE_UP_US: Final = 15 * SECOND  # of sending again: then the connection is reset


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkProfile:
    """How good the network is while nobody breaks it on purpose; times in microseconds."""

    least_us: int = 50
    spread_us: int = 400
    slow_one_in: int = 50  # messages delayed much longer
    slow_us: int = 20 * MS
    lost_one_in: int = 0  # packets sent again; 0: none


class Network:
    """Who can reach whom, and how long it takes."""

    def __init__(self, world: World, random: Random, profile: NetworkProfile) -> None:
        self.world = world
        self.random = random
        self.profile = profile
        self.cut: set[tuple[int, int]] = set()
        self.processes: dict[int, Process | None] = {}  # by node: what listens there
        self.powered: dict[int, bool] = {}  # by node: somebody answers, if only with a reset
        self.connections: list[Connection] = []

    def latency_us(self) -> int:
        """For one message; most are quick, a few are not."""
        random, profile = self.random, self.profile
        value = profile.least_us + int(random.random() * profile.spread_us)
        if profile.slow_one_in and random.random() * profile.slow_one_in < 1:
            value += int(random.random() * profile.slow_us)
        return value

    def dial(self, client: Process, server_id: int) -> Connection:
        """Begin a connection; requests may be sent at once, and wait for it."""
        connection = Connection(self, client, server_id)
        if len(self.connections) > 64:
            self.connections = [c for c in self.connections if not c.over]
        self.connections.append(connection)
        return connection

    def process_died(self, process: Process, *, kernel_answers: bool) -> None:
        """Its kernel resets what it had open, unless that is gone, too."""
        for connection in self.connections:
            if connection.client is process:
                connection.client_open = False
                if kernel_answers:
                    connection.forward.send(RESET, 0, None)
            elif connection.server is process:
                connection.server_open = False
                if kernel_answers:
                    connection.backward.send(RESET, 0, None)


class Pipe:
    """One direction of a connection: what was sent and has not arrived, in order."""

    __slots__ = (
        "_deliver",
        "_due",
        "_last_us",
        "_network",
        "_queue",
        "_retries",
        "_stalled_since_us",
        "destination",
        "source",
    )

    def __init__(
        self,
        network: Network,
        source: int,
        destination: int,
        deliver: Callable[[int, int, Any], None],
    ) -> None:
        self._network = network
        self.source = source
        self.destination = destination
        self._deliver = deliver
        self._queue: deque[tuple[int, int, Any]] = deque()
        self._last_us = 0
        self._due = 0  # arrived behind one that was lost
        self._retries = 0
        self._stalled_since_us: int | None = None

    def send(self, kind: int, correlation: int, payload: object) -> None:
        """Put it on the wire."""
        world = self._network.world
        self._last_us = max(self._last_us + 1, world.now_us + self._network.latency_us())
        self._queue.append((kind, correlation, payload))
        world.at(self._last_us, self._arrive)

    def stall(self, for_us: int) -> None:
        """Packets are lost: what is under way, and what follows it, arrives so much later."""
        if self._stalled_since_us is None:
            self._stalled_since_us = self._network.world.now_us
            self._due, self._retries = 0, 0
            self._network.world.after(for_us, self._again)

    def discard(self) -> None:
        """The connection was torn down: nothing of this arrives any more."""
        self._queue.clear()

    def _lost(self) -> bool:
        network = self._network
        if (self.source, self.destination) in network.cut:
            return True
        if not network.powered[self.destination]:
            return True
        one_in = network.profile.lost_one_in
        return one_in > 0 and network.random.random() * one_in < 1

    def _arrive(self) -> None:
        if self._stalled_since_us is not None:
            self._due += 1
        elif self._queue:
            if self._lost():
                self._stalled_since_us = self._network.world.now_us
                self._due, self._retries = 1, 0
                self._network.world.after(RETRANSMIT_US, self._again)
            else:
                self._deliver(*self._queue.popleft())

    def _again(self) -> None:
        world = self._network.world
        assert self._stalled_since_us is not None
        if self._lost() and self._queue:
            if world.now_us - self._stalled_since_us > GIVE_UP_US:
                self._stalled_since_us = None
                self._queue.clear()
                self._deliver(RESET, 0, None)  # seen by either end; see `Connection`
                return
            self._retries = min(self._retries + 1, 4)
            world.after(RETRANSMIT_US << self._retries, self._again)
            return
        self._stalled_since_us = None
        due, self._due = self._due, 0
        for _ in range(due):
            if self._queue:
                self._deliver(*self._queue.popleft())


class Connection:
    """One TCP connection, from one life of the client to one life of the server."""

    __slots__ = (
        "_dialled_us",
        "_network",
        "_waiting",
        "backward",
        "client",
        "client_open",
        "established",
        "forward",
        "number",
        "server",
        "server_id",
        "server_open",
    )

    def __init__(self, network: Network, client: Process, server_id: int) -> None:
        self._network = network
        self.client = client
        self.server_id = server_id
        self.server: Process | None = None
        self.number = -1  # as the server's process counts them
        self.client_open = True
        self.server_open = False
        self.established = False
        self.forward = Pipe(network, client.node_id, server_id, self._at_server)
        self.backward = Pipe(network, server_id, client.node_id, self._at_client)
        self._waiting: list[tuple[int, object]] = []
        self._dialled_us = network.world.now_us
        network.world.after(network.latency_us(), self._syn)

    @property
    def over(self) -> bool:
        """Closed at both ends."""
        return not self.client_open and not self.server_open

    # -- dialling ------------------------------------------------------------------------------

    def _syn(self) -> None:
        """A packet asks for a connection; unanswered ones are sent again for a while."""
        network = self._network
        if not self.client_open:
            return
        ends = (self.forward.source, self.forward.destination)
        if ends in network.cut or not network.powered[self.server_id]:
            if network.world.now_us - self._dialled_us >= DIAL_TIMEOUT_US:
                self.client_open = False
                self.client.dial_failed(self, refused=False)
            else:
                network.world.after(SYN_RETRY_US, self._syn)
            return
        server = network.processes[self.server_id]
        if server is None:
            self.backward.send(REFUSED, 0, None)
            return
        self.server, self.server_open = server, True
        self.number = server.accepted(self)
        self.backward.send(ACCEPTED, 0, None)

    # -- the client's end ------------------------------------------------------------------------

    def request(self, correlation: int, payload: object) -> None:
        """Send a request, or let it wait for the connection."""
        if self.established:
            self.forward.send(REQUEST, correlation, payload)
        else:
            self._waiting.append((correlation, payload))

    def close(self) -> None:
        """The client closes; what it sent before may still arrive."""
        self.client_open = False
        self._waiting.clear()
        if self.server is not None or self.established:
            self.forward.send(FIN, 0, None)

    def _at_client(self, kind: int, correlation: int, payload: object) -> None:
        if not self.client_open:
            return
        if kind == RESPONSE:
            self.client.deliver_response(self, correlation, payload)
        elif kind == ACCEPTED:
            self.established = True
            waiting, self._waiting = self._waiting, []
            for number, request in waiting:
                self.forward.send(REQUEST, number, request)
        elif kind == REFUSED:
            self.client_open = False
            self.client.dial_failed(self, refused=True)
        else:
            self.reset_client()
            if kind == RESET and self.server_open:  # nobody could send for too long
                self.reset_server()

    def reset_client(self) -> None:
        """The client learns that the connection is gone."""
        if self.client_open:
            self.client_open = False
            self.forward.discard()
            self.client.connection_lost(self)

    # -- the server's end --------------------------------------------------------------------------

    def respond(self, correlation: int, payload: object) -> None:
        """Answer, if the connection still stands."""
        if self.server_open:
            self.backward.send(RESPONSE, correlation, payload)

    def _at_server(self, kind: int, correlation: int, payload: object) -> None:
        server = self.server
        if server is None or not self.server_open:
            if kind == REQUEST and self.client_open:
                self.backward.send(RESET, 0, None)  # its process is gone: the kernel says so
            return
        if kind == REQUEST:
            server.deliver_request(self, correlation, payload)
            return
        self.reset_server()
        if kind == RESET and self.client_open:
            self.reset_client()

    def reset_server(self) -> None:
        """The server learns that the connection is gone."""
        if self.server_open:
            assert self.server is not None
            self.server_open = False
            self.backward.discard()
            self.server.inbound_closed(self)

    def abort(self) -> None:
        """Something in between resets both ends at once; what was under way is lost."""
        self.forward.discard()
        self.backward.discard()
        self.reset_client()
        self.reset_server()
