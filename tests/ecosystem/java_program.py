"""A Java program of the ecosystem in a process of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.interop.kafka_run import Kafka

SHOWN_BYTES: Final = 4_000


class JavaProgram:
    """A Java program in a process of its own, which is killed when the block is left."""

    def __init__(self, kafka: Kafka, home: Path, name: str, main: str, *arguments: str) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._log = home / f"{name}.log"
        command = kafka.command(main, *arguments)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=home)

    @property
    def output(self) -> str:
        """The end of everything that the program has printed."""
        return self._log.read_text(errors="replace")[-SHOWN_BYTES:]

    def check_alive(self) -> None:
        assert self._process.poll() is None, f"ended: {self.output}"

    def kill(self) -> None:
        """End the process with SIGKILL and wait until it is gone."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()
        if error is not None:
            error.add_note(f"--- {self._log.name}\n{self.output}")


def write_properties(path: Path, settings: Mapping[str, str]) -> Path:
    """Write a properties file and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path
