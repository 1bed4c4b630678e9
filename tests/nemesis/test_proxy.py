"""The broken network breaks as it says: held bytes come late, cut connections are reset."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.nemesis.proxy import Links
from tests.ports import free_ports

PATIENCE_S = 60


@pytest.fixture
def links() -> Iterator[Links]:
    """Two nodes, the second of which echoes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_echo_for_ever, args=(server,), daemon=True).start()
        with Links({1: free_ports(1)[0], 2: server.getsockname()[1]}) as made:
            yield made
        server.shutdown(socket.SHUT_RDWR)


def _echo_for_ever(server: socket.socket) -> None:
    while True:
        try:
            one, _ = server.accept()
        except OSError:
            return
        threading.Thread(target=_echo, args=(one,), daemon=True).start()


def _echo(one: socket.socket) -> None:
    with one:
        try:
            while data := one.recv(1024):
                one.sendall(data)
        except OSError:
            return


def dial(links: Links) -> socket.socket:
    one = socket.create_connection(("127.0.0.1", links.ports[1, 2]), timeout=PATIENCE_S)
    try:
        one.sendall(b"hello")
        assert one.recv(5) == b"hello"
    except OSError:
        one.close()
        raise
    return one


@pytest.mark.parametrize(("a", "b"), [(1, 2), (2, 1)])
def test_a_stalled_network_proxy_forwards_the_delayed_bytes_after_the_fault_ends(
    links: Links, a: int, b: int
) -> None:
    with dial(links) as one:
        links.hold(a, b)
        one.sendall(b"late")
        one.settimeout(0.1)
        with pytest.raises(TimeoutError):
            one.recv(4)
        links.heal()
        one.settimeout(PATIENCE_S)
        assert one.recv(4) == b"late"


def test_connections_through_a_cut_network_proxy_are_reset_until_the_fault_ends(
    links: Links,
) -> None:
    with dial(links) as one:
        links.cut(2, 1)
        with pytest.raises(ConnectionResetError):
            one.recv(1)
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        dial(links)
    links.heal()
    dial(links).close()


def test_a_network_proxy_with_a_rate_limit_forwards_bytes_at_this_rate(links: Links) -> None:
    with dial(links) as one:
        links.drip(2, 1, 10_000)
        began = time.monotonic()
        one.sendall(b"x" * 2_000)
        left = 2_000
        while left:
            left -= len(one.recv(left))
        assert time.monotonic() - began >= 0.2


def test_a_connection_through_the_network_proxy_to_a_dead_node_is_reset(links: Links) -> None:
    with (
        pytest.raises(ConnectionResetError),  # while connecting, or after
        socket.create_connection(("127.0.0.1", links.ports[2, 1]), timeout=PATIENCE_S) as one,
    ):
        one.recv(1)
