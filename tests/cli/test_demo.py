"""The demo claims only what it checked, and fails if something is not so."""

from __future__ import annotations

import shutil
import sys

import pytest

from examples import demo
from tests.interop import recording


def run(monkeypatch) -> int:
    """The demo on recorded files, without the quorum's part (tests/driver has that)."""
    monkeypatch.setattr(demo, "run_quorum", lambda _home: None)
    monkeypatch.setattr(sys, "argv", ["demo", "--recorded"])
    return demo.main()


def test_the_demo_shows_the_recorded_log_and_says_that_it_is_recorded(monkeypatch, capsys):
    assert run(monkeypatch) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    assert "\x1b" not in out
    assert "not written now" in lines[2]


@pytest.mark.parametrize("position", [200, -40])
def test_the_demo_fails_on_a_log_that_is_not_what_it_claims(
    tmp_path, monkeypatch, capsys, position
):
    shutil.copytree(recording.DIRECTORY, tmp_path / "kafka")
    log = tmp_path / "kafka" / recording.DYNAMIC / recording.METADATA / f"{0:020}.log"
    data = bytearray(log.read_bytes())
    data[position] ^= 1
    log.write_bytes(data)
    monkeypatch.setattr(demo, "DIRECTORY", tmp_path / "kafka")
    assert run(monkeypatch) == 1
    assert "not so" in capsys.readouterr().out
