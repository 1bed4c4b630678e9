"""Who may import whom: walks every import of every module, and believes no comment.

Imports inside functions and under `TYPE_CHECKING` count as well: a room that needs another one's
types needs that room.

Source: docs/design/README.md#rooms-and-imports.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]

OPEN: Final = ("raft.interfaces", "raft.net", "raft.segments")
"""Every room above `raft` may import these: one transport, one segment format."""

COORDINATOR_ROOTS: Final = tuple(
    f"coordinator.{name}"
    for name in (
        "clocks",
        "errors",
        "features",
        "image_machine",
        "leader_client",
        "ownership",
        "persistent_map",
        "proposer",
        "rendezvous",
    )
)
"""Modules that every state machine of `coordinator` may import; they import none of those."""

BELOW_COORDINATOR: Final = ("records", "snapshot", *COORDINATOR_ROOTS, *OPEN)

BROKER_ROOTS: Final = (
    "diskless.cluster",
    "diskless.histograms",
    "diskless.loop_turns",
    "diskless.placement",
    "diskless.request_time",
    "diskless.traffic",
    "diskless.transactions",
    "diskless.zones",
)
"""Modules that every folder of the broker may import; they import none of those folders."""

OUTSIDE_JOBS: Final = (
    "records",
    "snapshot",
    "coordinator.batch.client",
    "coordinator.batch.retention_planner",
    "coordinator.errors",
    "diskless.stores.interface",  # of the stores, the part that cannot delete
    "diskless.stores.object_directory",
    "diskless.stores.s3_client",
    *OPEN,
)
"""What jobs may import of the rooms below them."""

NODE_ROOMS: Final = ("records", "raft", "snapshot", "coordinator", "diskless")
"""Rooms that a node runs; the folders of `esker` connect them."""

MAY_IMPORT: Final[dict[str, tuple[str, ...]]] = {
    # The longest name that a module's own name begins with is its room.
    "records": (),
    "raft": ("records", "raft"),
    **dict.fromkeys(OPEN, ("records",)),
    "snapshot": ("records", *OPEN),
    "coordinator": ("records", "snapshot", *OPEN),
    **dict.fromkeys(COORDINATOR_ROOTS, BELOW_COORDINATOR),
    "coordinator.batch": BELOW_COORDINATOR,
    "coordinator.groups": BELOW_COORDINATOR,
    "coordinator.transactions": BELOW_COORDINATOR,
    "coordinator.controller": (  # it calls batch coordinators, and shares their view of a cluster
        "coordinator.batch.cluster_view",
        "coordinator.batch.interface",
        "coordinator.batch.settings",
        *BELOW_COORDINATOR,
    ),
    "coordinator.embedded": ("coordinator.batch", *BELOW_COORDINATOR),
    "diskless": ("records", "coordinator", *OPEN),
    "diskless.stores": ("records", "raft.segments"),
    **dict.fromkeys(BROKER_ROOTS, ("records", "coordinator", *BROKER_ROOTS)),
    "diskless.backup": (
        "records",
        "coordinator",
        "diskless.lineage",
        "diskless.stores",
        *BROKER_ROOTS,
        *OPEN,
    ),
    "diskless.access": ("records", "coordinator", *OPEN),
    "diskless.quotas": ("records", "coordinator", *BROKER_ROOTS, *OPEN),
    "diskless.produce": (
        "records",
        "coordinator",
        "diskless.access",
        "diskless.stores",
        *BROKER_ROOTS,
        *OPEN,
    ),
    "diskless.fetch": ("records", "coordinator", "diskless.stores", *BROKER_ROOTS, *OPEN),
    "diskless.compaction": (
        "records",
        "coordinator",
        "diskless.fetch",
        "diskless.stores",
        *BROKER_ROOTS,
        *OPEN,
    ),
    "diskless.apis": (
        "records",
        "coordinator",
        "diskless.access",
        "diskless.fetch",
        "diskless.produce",
        "diskless.quotas",
        "diskless.stores",
        *BROKER_ROOTS,
        *OPEN,
    ),
    "spark_jobs": OUTSIDE_JOBS,
    "spark_jobs.session": OUTSIDE_JOBS,
    "spark_jobs.readers": ("spark_jobs.session", *OUTSIDE_JOBS),
    "spark_jobs.tables": ("spark_jobs.readers", *OUTSIDE_JOBS),
    "spark_jobs.source": ("spark_jobs.readers", "spark_jobs.tables", *OUTSIDE_JOBS),
    "spark_jobs.plans": OUTSIDE_JOBS,
    **dict.fromkeys(
        ("spark_jobs.retention", "spark_jobs.orphans"),
        ("spark_jobs.plans", "spark_jobs.readers", "spark_jobs.tables", *OUTSIDE_JOBS),
    ),
    "spark_jobs.merge": (  # the brokers' planner and rewriter
        "spark_jobs.plans",
        "spark_jobs.readers",
        "spark_jobs.tables",
        "coordinator.batch.interface",
        "diskless.compaction",
        "diskless.fetch.runs_reader",
        *OUTSIDE_JOBS,
    ),
    **dict.fromkeys(
        ("spark_jobs.archive", "spark_jobs.audit"),
        ("spark_jobs.readers", "spark_jobs.tables", *OUTSIDE_JOBS),
    ),
    "spark_jobs.topics": (
        "spark_jobs.readers",
        "spark_jobs.source",
        "spark_jobs.tables",
        *OUTSIDE_JOBS,
    ),
    "spark_jobs.topic_tables": (
        "spark_jobs.readers",
        "spark_jobs.source",
        "spark_jobs.topics",
        *OUTSIDE_JOBS,
    ),
    "spark_jobs.report": (
        "spark_jobs.prices",
        "spark_jobs.readers",
        "spark_jobs.tables",
        *OUTSIDE_JOBS,
    ),
    "spark_jobs.what_if": (  # which broker serves a partition: a pure function
        "coordinator.controller.placement",
        "spark_jobs.prices",
        "spark_jobs.readers",
        *OUTSIDE_JOBS,
    ),
    "esker": (*NODE_ROOMS, "spark_jobs"),
    "esker.settings": NODE_ROOMS,
    "esker.client": ("esker.settings", *NODE_ROOMS),
    "esker.dump": ("esker.client", *NODE_ROOMS),
    "esker.server": ("esker.settings", *NODE_ROOMS),
    "esker.restore": ("esker.server", "esker.settings", *NODE_ROOMS),
    "esker.dev": ("esker.cli", "esker.client", "esker.server", "esker.settings", *NODE_ROOMS),
    "esker.commands": ("esker", "spark_jobs", *NODE_ROOMS),
}
ROOMS: Final = tuple(sorted({room.partition(".")[0] for room in MAY_IMPORT}))
OURS: Final = (*ROOMS, "tests", "bench", "examples")

PURE: Final = {
    "raft.core": ("asyncio", "os", "random", "select", "socket", "threading", "time"),
    "records": ("asyncio", "os", "random", "select", "socket", "threading", "time"),
    **dict.fromkeys(  # the simulator runs them on a loop, a clock and a disk of its own
        (
            "snapshot.encoder",
            "snapshot.generation",
            "snapshot.host",
            "snapshot.kv",
            "snapshot.log_start",
            "snapshot.policy",
            *(
                f"coordinator.groups.{name}"
                for name in (
                    "core",
                    "decide",
                    "group",
                    "leader",
                    "loading",
                    "machine",
                    "membership",
                )
            ),
            *(
                f"coordinator.groups.{name}"
                for name in ("offsets", "outbox", "reads", "rebalance", "state", "timers")
            ),
            *(
                f"coordinator.transactions.{name}"
                for name in ("checkpoint", "decide", "leader", "machine", "markers", "state")
            ),
        ),
        ("asyncio", "os", "random", "secrets", "select", "socket", "threading", "time"),
    ),
}
"""Rooms that do nothing but compute, and what they would do it with otherwise.

Source: docs/design/quorum.md#sans-io-core.
"""

HARMLESS: Final = ("random.Random",)  # a type: its instance, and so its seed, comes from outside


def modules(root: Path) -> dict[str, Path]:
    """Every module of our rooms below `root`, by dotted name."""
    found = {}
    for room in ROOMS:
        for path in sorted((root / room).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str, path: Path, known: dict[str, Path]) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything that a module imports."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join(
                [*(above if node.level else []), *([node.module] if node.module else [])]
            )
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                ours = base.partition(".")[0] in OURS
                yield node.lineno, base if ours and whole not in known else whole
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield node.lineno, argument.value


def _within(name: str, room: str) -> bool:
    return name == room or name.startswith(room + ".")


def _room(name: str) -> str:
    return max((room for room in MAY_IMPORT if _within(name, room)), key=len)


def violations(root: Path) -> list[str]:
    """Each import that the table forbids, as `file:line: module imports name`."""
    known = modules(root)
    found = []
    for name, path in known.items():
        room = _room(name)
        allowed = (room, *MAY_IMPORT[room])
        for line, target in imports(name, path, known):
            where = f"{path.relative_to(root)}:{line}: {name} imports {target}"
            if target.partition(".")[0] in OURS:
                if not any(_within(target, other) for other in allowed):
                    found.append(where)
            elif target not in HARMLESS and any(
                _within(name, pure) and any(_within(target, world) for world in outside)
                for pure, outside in PURE.items()
            ):
                found.append(f"{where}, and is to stay pure")
    return found


def test_every_import_is_allowed_by_the_table_of_layers() -> None:
    assert not violations(ROOT), "\n".join(["", *violations(ROOT)])


def test_every_module_listed_as_free_of_input_and_output_exists() -> None:
    """A rename must not take a module out of the rule in silence."""
    assert not set(PURE) - set(modules(ROOT))


def test_examples_import_neither_tests_nor_bench() -> None:
    """It is read, and copied, by somebody who has neither."""
    for path in (ROOT / "examples").rglob("*.py"):
        taken = {target.partition(".")[0] for _, target in imports("examples", path, {})}
        assert not taken & {"tests", "bench"}, f"{path.name} imports {taken}"


def test_every_folder_with_modules_is_a_python_package_of_the_distribution() -> None:
    included = tomllib.loads((ROOT / "pyproject.toml").read_text())
    rooms = included["tool"]["setuptools"]["packages"]["find"]["include"]
    assert sorted(rooms) == [f"{room}*" for room in ROOMS]
    for path in modules(ROOT).values():
        assert (path.parent / "__init__.py").exists(), f"{path.parent} has no __init__.py"


def test_the_init_module_of_raft_imports_no_module() -> None:
    known = modules(ROOT)
    assert list(imports("raft", known["raft"], known)) == []


PLANTED = [  # module, what it says, whether the checker must object
    ("records/bad.py", "import raft.core", True),
    ("records/bad.py", "from snapshot import reader", True),
    ("records/bad.py", "import time", True),
    ("records/good.py", "import struct\nfrom records.types import Offset", False),
    ("raft/net/bad.py", "from raft.core import quorum", True),
    ("raft/net/bad.py", "from ..core import quorum", True),
    ("raft/net/bad.py", "from .. import core", True),
    ("raft/net/good.py", "from . import frames\nimport asyncio", False),
    ("raft/core/bad.py", "from time import monotonic", True),
    ("raft/core/bad.py", "def f():\n    import random", True),
    ("raft/core/good.py", "from random import Random", False),
    ("raft/bad.py", "import snapshot", True),
    ("snapshot/bad.py", "import raft", True),
    ("snapshot/bad.py", "from raft import core", True),
    ("snapshot/good.py", "from raft import interfaces\nfrom raft.segments import log", False),
    ("coordinator/bad.py", "from diskless.broker import Broker", True),
    ("coordinator/proposer.py", "from coordinator.batch.interface import BatchCoordinator", True),
    ("coordinator/batch/bad.py", "from coordinator.controller import client", True),
    ("coordinator/batch/good.py", "from coordinator.proposer import Proposer", False),
    ("coordinator/controller/bad.py", "from coordinator.batch.leader import Leader", True),
    ("coordinator/groups/bad.py", "from coordinator.batch.interface import CallTarget", True),
    ("diskless/bad.py", "import snapshot.reader", True),
    ("diskless/good.py", "from coordinator.batch.client import Client", False),
    ("diskless/stores/bad.py", "from coordinator.errors import CoordinatorError", True),
    ("diskless/stores/bad.py", "from diskless.histograms import Histogram", True),
    ("diskless/fetch/bad.py", "from diskless.apis.metadata import describe", True),
    ("diskless/fetch/bad.py", "from diskless.produce.validation import validate", True),
    ("diskless/produce/bad.py", "from diskless.services import Services", True),
    ("diskless/apis/good.py", "from diskless.fetch.service import FetchService", False),
    ("spark_jobs/bad.py", "from diskless.broker import Broker", True),
    ("spark_jobs/plans/bad.py", "from spark_jobs.retention.plan import Planner", True),
    ("spark_jobs/retention/good.py", "from spark_jobs.plans.retention_plan import Plan", False),
    ("spark_jobs/bad.py", "from coordinator.batch.state import State", True),
    ("spark_jobs/bad.py", "from diskless.stores.s3 import S3Storage", True),
    ("spark_jobs/good.py", "from diskless.stores.s3_client import S3Client", False),
    ("diskless/stores/bad.py", "from diskless.broker import Broker", True),
    ("spark_jobs/bad.py", "from esker.settings.config import Config", True),
    (
        "spark_jobs/good.py",
        "from coordinator.batch.retention_planner import plan\nimport snapshot.reader",
        False,
    ),
    ("esker/bad.py", "from tests.records import strategies", True),
    ("esker/settings/bad.py", "from esker.server.node import NodeParts", True),
    ("esker/server/bad.py", "from esker.commands.dev import dev", True),
    ("esker/bad.py", "import bench.bench_codec", True),
    ("esker/bad.py", "import importlib\nimportlib.import_module('tests.esker.commands')", True),
    ("esker/bad.py", "if False:\n    from bench import bench_codec", True),
    ("esker/good.py", "import raft.core, diskless.broker, spark_jobs.archive", False),
]


@pytest.mark.parametrize(("module", "text", "forbidden"), PLANTED)
def test_the_layer_checker_finds_a_forbidden_import(
    tmp_path: Path, module: str, text: str, forbidden: bool
) -> None:
    for known in ("raft/core/__init__.py", "raft/interfaces.py", "raft/net/frames.py"):
        (tmp_path / known).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / known).touch()
    (tmp_path / module).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / module).write_text(text)
    found = violations(tmp_path)
    assert bool(found) is forbidden, found
    assert all(line.startswith(f"{module}:") for line in found)
