"""The benchmark of planning still runs: at its tiny size, whatever its figures."""

from __future__ import annotations

import sys

import pytest

from bench import bench_planning


def test_the_planning_benchmark_runs_without_errors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_planning", "--tiny"])
    bench_planning.main()
    printed = capsys.readouterr().out
    assert "columns " in printed
    assert "objects " in printed
