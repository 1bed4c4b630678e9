"""How Kafka's tools are run: one that hangs is run again, one that fails is not."""

from pathlib import Path

import pytest

from tests.interop.kafka_run import (
    HUNG_RUNS,
    SHELL_ATTEMPTS,
    Kafka,
    Said,
    ToolFailedError,
    ToolHungError,
)


def shell_after(monkeypatch: pytest.MonkeyPatch, *outcomes: Exception | Said) -> str:
    """MetadataShell's answer, if its runs end like this."""
    left = list(outcomes)

    def run(*_: object, **__: object) -> Said:
        outcome = left.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(Kafka, "run", run)
    return Kafka(Path("jars")).shell(Path("file"))


def test_the_kafka_tests_run_a_metadata_shell_that_hangs_again(monkeypatch):
    hung = [ToolHungError("hung")] * HUNG_RUNS
    assert shell_after(monkeypatch, *hung, Said("image", "")) == "image"
    with pytest.raises(ToolHungError):
        shell_after(monkeypatch, *hung, ToolHungError("hung"))


def test_the_kafka_tests_do_not_run_a_metadata_shell_that_fails_again(monkeypatch):
    with pytest.raises(ToolFailedError):
        shell_after(monkeypatch, ToolFailedError("no"), Said("image", ""))


def test_the_kafka_tests_repeat_a_metadata_shell_run_that_printed_nothing(monkeypatch):
    early = [Said("", "")] * (SHELL_ATTEMPTS - 1)
    assert shell_after(monkeypatch, *early, Said("image", "")) == "image"
    with pytest.raises(ToolFailedError, match="finds nothing"):
        shell_after(monkeypatch, *early, Said("", ""))
