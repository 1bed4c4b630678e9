"""The controller benchmark runs at its smallest size; the cluster's is in `test_processes`."""

from __future__ import annotations

import sys

import pytest

from bench import bench_controller


def test_the_controller_benchmark_runs_at_a_small_size_and_prints_its_results(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_controller", "--tiny"])
    monkeypatch.setattr(bench_controller.gc, "freeze", lambda: None)  # of a process of its own
    monkeypatch.setattr(bench_controller.gc, "set_threshold", lambda *_: None)
    bench_controller.main()
    printed = capsys.readouterr().out
    for figure in ("topics/s", "heartbeat p99", "longest slice", "image", "change", "beats"):
        assert figure in printed
