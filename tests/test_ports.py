"""Two processes that start things at once get other ports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.ports import BLOCK, free_ports, free_row

ROOT = Path(__file__).parents[1]
ASK = "from tests.ports import free_ports; print(*free_ports(40), flush=True); input()"


def test_the_test_port_allocator_never_gives_two_processes_the_same_port() -> None:
    others = [
        subprocess.Popen(
            [sys.executable, "-c", ASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
        )
        for _ in range(2)
    ]
    try:
        ports = free_ports(40)
        for other in others:
            assert other.stdout is not None
            ports += map(int, other.stdout.readline().split())
    finally:
        for other in others:
            other.communicate(b"\n")
    assert len(ports) == len(set(ports)) == 120


def test_the_test_port_allocator_reuses_free_ports_and_reserves_disjoint_port_rows() -> None:
    rows = [free_row((0, 1, 10)) for _ in range(10)]
    ports = [row + distance for row in rows for distance in range(11)]
    assert len(ports) == len(set(ports))
    again = free_ports(BLOCK)
    assert len(set(again)) > BLOCK / 2
