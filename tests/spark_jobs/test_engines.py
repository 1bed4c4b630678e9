"""A helper process changes the time that work takes, and nothing else."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from spark_jobs.readers.engines import HELPED, LocalEngine, pickled
from spark_jobs.readers.log_files import LostRangeError
from spark_jobs.readers.logs import LogsError
from tests.waiting import DEADLINE_S, wait_until


class Piece(NamedTuple):
    number: int
    parent: int  # process
    directory: Path

    @property
    def is_helper(self) -> bool:
        return os.getpid() != self.parent


def pieces(directory: Path, count: int = 3 * HELPED) -> list[Piece]:
    return [Piece(number, os.getpid(), directory) for number in range(count)]


def await_helper(piece: Piece) -> int:
    """Wait until the helper works, too; return its process id."""
    mark = piece.directory / "helper"
    if piece.is_helper:
        mark.with_suffix(".part").write_text(str(os.getpid()))
        mark.with_suffix(".part").replace(mark)
    wait_until(mark.exists, "there is a helper")
    return int(mark.read_text())


def answer(piece: Piece) -> tuple[int, bool]:
    await_helper(piece)
    print("what a task prints is no answer", flush=True)
    return piece.number, piece.is_helper


def dies(piece: Piece) -> int:
    await_helper(piece)
    if piece.is_helper:
        os._exit(9)
    return piece.number


def fails(piece: Piece) -> int:
    await_helper(piece)
    if piece.number >= 1:
        raise OSError(f"piece {piece.number}")
    return piece.number


def interrupted(piece: Piece) -> int:
    await_helper(piece)
    if piece.is_helper:
        time.sleep(DEADLINE_S)
    raise KeyboardInterrupt


def is_here(piece: Piece) -> bool:
    return not piece.is_helper


def test_the_local_engine_returns_results_in_order_if_a_helper_process_shares_the_work(
    tmp_path: Path,
) -> None:
    done: list[int] = []
    found = LocalEngine(helper=True).run(answer, pieces(tmp_path), done.append)
    assert [number for number, _ in found] == list(range(3 * HELPED))
    assert {by_helper for _, by_helper in found} == {True, False}
    assert sum(done) == 3 * HELPED


def test_the_local_engine_finishes_its_work_after_its_helper_process_dies(tmp_path: Path) -> None:
    found = LocalEngine(helper=True).run(dies, pieces(tmp_path))
    assert found == list(range(3 * HELPED))


def test_the_local_engine_raises_the_error_of_the_first_failed_item(tmp_path: Path) -> None:
    """It does not matter which process met it first."""
    with pytest.raises(OSError, match=r"^piece 1$"):
        LocalEngine(helper=True).run(fails, pieces(tmp_path))


def test_an_interrupt_of_a_local_job_ends_its_helper_process(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        LocalEngine(helper=True).run(interrupted, pieces(tmp_path))
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "helper").read_text()), 0)


@pytest.mark.parametrize("light", [True, False])
def test_the_local_engine_runs_few_or_light_tasks_in_the_calling_process(
    tmp_path: Path, light: bool
) -> None:
    some = pieces(tmp_path, 3 * HELPED if light else HELPED - 1)
    here = LocalEngine(helper=True).run(is_here, some, light=light)
    assert all(here)


def test_an_error_of_a_spark_task_keeps_type_and_offsets_when_it_is_pickled() -> None:
    lost = pickle.loads(pickled(LostRangeError("a log", 3, 7, "its head was cut off")))
    assert isinstance(lost, LostRangeError)
    assert (lost.wanted, lost.earliest) == (3, 7)


class UntravelledError(ValueError):
    """An error that cannot be unpickled from its message alone."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def test_a_task_error_that_cannot_be_pickled_keeps_its_message() -> None:
    found = pickle.loads(pickled(UntravelledError(1, 2)))
    assert isinstance(found, LogsError)
    assert str(found) == "UntravelledError: 1 and 2"
