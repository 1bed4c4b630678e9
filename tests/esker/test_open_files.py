"""However many clients come, a node keeps files for itself."""

from __future__ import annotations

import resource
from collections.abc import Callable

import pytest

from esker.server.open_files import LEAST, RESERVED, connections_allowed
from raft.driver.errors import NodeError

Limit = Callable[[int, int], dict[str, tuple[int, int]]]


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Limit:
    """A process with these limits of open files; what it is given in the end is under `now`."""

    def begin(soft: int, hard: int) -> dict[str, tuple[int, int]]:
        limits = {"now": (soft, hard)}
        monkeypatch.setattr(resource, "getrlimit", lambda _: limits["now"])
        monkeypatch.setattr(resource, "setrlimit", lambda _, both: limits.update(now=both))
        return limits

    return begin


def test_a_node_raises_the_soft_limit_of_open_files_to_allow_its_maximum_connections(
    limit: Limit,
) -> None:
    limits = limit(1024, 100_000)
    assert connections_allowed(10_000, 2) == 10_000
    assert limits["now"] == (20_000 + RESERVED, 100_000)


def test_a_node_does_not_lower_an_unlimited_limit_of_open_files(limit: Limit) -> None:
    limits = limit(resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    assert connections_allowed(10_000, 1) == 10_000
    assert limits["now"] == (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    limits = limit(1024, resource.RLIM_INFINITY)
    assert connections_allowed(10_000, 1) == 10_000
    assert limits["now"] == (10_000 + RESERVED, resource.RLIM_INFINITY)


def test_the_hard_limit_of_open_files_reduces_the_number_of_connections(
    limit: Limit, caplog: pytest.LogCaptureFixture
) -> None:
    limits = limit(256, 1024)
    assert connections_allowed(10_000, 1) == 1024 - RESERVED
    assert limits["now"] == (1024, 1024)
    assert "ulimit -Hn" in caplog.text


def test_a_node_whose_limit_of_open_files_allows_no_connection_does_not_start(limit: Limit) -> None:
    """It would refuse even its peers and itself, and they come again at once, for ever."""
    limit(128, 128)
    with pytest.raises(NodeError, match=rf"^128 files .* {RESERVED + 2 * LEAST} at least.* -Hn"):
        connections_allowed(10_000, 2)
    enough = RESERVED + LEAST
    limit(enough, enough)
    assert connections_allowed(10_000, 1) == LEAST
    limit(RESERVED + 5, RESERVED + 5)
    assert connections_allowed(5, 1) == 5, "whoever wants few may have them"
