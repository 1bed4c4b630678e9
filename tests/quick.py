"""Which tests `make quick` runs: those that start no process, and are not marked `slow`.

A plugin: `pytest -p tests.quick`. A test module is left out, and not even imported, where it or a
helper among the tests that it imports (the conftest.py files above it included) imports what starts
processes. That is read from the sources, so a new test needs no mark. What such reading cannot see,
a program of ours that starts a process by itself, is seen while it runs: then the test fails, and
its message asks for the mark `slow`.

    python -m tests.quick         lists the modules
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parents[1]
STARTERS: Final = frozenset({"subprocess", "multiprocessing", "pyspark"})
"""Modules that a test imports in order to start a process, or a JVM."""
PROCESS_EVENTS: Final = frozenset({"subprocess.Popen", "os.posix_spawn", "os.fork", "os.system"})
"""Events of `sys.audit`. Source: the Python library's table of audit events."""
MARKS: Final = frozenset({"java", "root", "slow", "soak", "spark"})
"""A test with any of these marks is left to `make test` or `make soak`."""

_running: list[str] = []  # the test that runs in this process


def imports(path: Path) -> Iterator[str]:
    """Dotted names of everything that a file imports, members of packages spelt out."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported(path: Path, root: Path = ROOT) -> frozenset[str]:
    """What a test module imports, by itself and through files of ours that are not product code."""
    found: set[str] = set()
    seen: set[Path] = set()
    waiting = [path, *(folder / "conftest.py" for folder in path.parents)]
    while waiting:
        file = waiting.pop()
        if file in seen or not file.is_relative_to(root) or not file.is_file():
            continue
        seen.add(file)
        names = _imports_of(file)
        found |= names
        for name in names:
            if name.partition(".")[0] in ("tests", "bench", "examples"):
                waiting.append(root.joinpath(*name.split(".")).with_suffix(".py"))
    return frozenset(found)


@cache
def _imports_of(file: Path) -> frozenset[str]:
    return frozenset(imports(file))


def is_quick(path: Path, root: Path = ROOT) -> bool:
    """Whether a test module imports nothing that starts processes."""
    return not any(name.partition(".")[0] in STARTERS for name in imported(path, root))


def quick_modules() -> list[Path]:
    """All test modules that `make quick` runs."""
    return [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if is_quick(path)]


# --- the plugin -----------------------------------------------------------------------------------


def refuse_processes(event: str, _: tuple[Any, ...]) -> None:
    """An audit hook: raises AssertionError where a running test starts a process."""
    if _running and event in PROCESS_EVENTS:
        raise AssertionError(
            f"{_running[-1]} starts a process ({event}), and `make quick` runs no test that does: "
            "mark it `slow`"
        )


def pytest_configure() -> None:
    sys.addaudithook(refuse_processes)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave a module out before it is imported."""
    path = collection_path
    is_ours = path.is_relative_to(ROOT) and path.name.startswith("test_") and path.suffix == ".py"
    return True if is_ours and not is_quick(path) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = {item for item in items if any(mark.name in MARKS for mark in item.iter_markers())}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Processes are refused while a test runs; pytest-xdist starts its own before."""
    _running.append(item.nodeid)
    try:
        return (yield)
    finally:
        _running.pop()


if __name__ == "__main__":
    print("\n".join(path.relative_to(ROOT).as_posix() for path in quick_modules()))
