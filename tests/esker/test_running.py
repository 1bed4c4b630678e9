"""What a node's process survives that is no business of a node's."""

from __future__ import annotations

import os
import sys

import pytest

from esker.server.process import announce


def test_a_node_keeps_running_after_its_standard_output_is_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As with `esker start FILE | true`: the broker serves on."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as lost:  # closing flushes what is left: nor may that fail
        monkeypatch.setattr(sys, "stdout", lost)
        announce("Broker 101 is ready at localhost:9092")
    assert "stdout=lost reason='Broken pipe' said='Broker 101 is ready" in caplog.text


def test_a_node_keeps_running_if_its_standard_output_is_a_file_on_a_full_disk(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        monkeypatch.setattr(sys, "stdout", full)
        announce("Broker 101 is ready at localhost:9092")
    assert "No space left" in caplog.text
