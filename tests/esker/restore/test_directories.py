"""A restore is refused by a sentence, overwrites nothing, and can be run again after any step.

Source: docs/design/restore.md#states-of-a-restore, docs/design/restore.md#failure-cases.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diskless.lineage import claim_key
from diskless.stores import StorageError
from esker.restore import directories
from esker.restore import run as restoring
from esker.restore.errors import RestoreError
from esker.restore.run import Done, Options, prepare, restore_cluster
from esker.restore.sources import Sources
from esker.settings.config import NodeSettings, parse_config
from raft.driver.config import METADATA_GROUP
from raft.driver.registry import DirectoryLock
from raft.segments.files import RealFileSystem
from raft.segments.properties import read_meta_properties, read_quorum_state
from records.diskless import DisklessTopicState
from records.object_keys import ObjectKeys
from snapshot.reader import CheckpointReader
from tests.esker.restore.lost import CLUSTER_ID, COORDINATOR, LOGS, Logs, lost_logs, write_node

NEW_ID = "BBBBBBBBBBBBBBBBBBBBBQ"
OTHER_ID = "CCCCCCCCCCCCCCCCCCCCCQ"
PORTS = {1: 9091, 2: 9092, 3: 9093, 101: 9101}


def settings(home: Path, node: int) -> NodeSettings:
    role = "broker" if node > 100 else "controller"
    return parse_config(
        {
            "process.roles": role,
            "node.id": str(node),
            "controller.quorum.voters": "1@127.0.0.1:9091,2@127.0.0.1:9092,3@127.0.0.1:9093",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"{'PLAINTEXT' if node > 100 else 'CONTROLLER'}://127.0.0.1:{PORTS[node]}",
            "log.dirs": str(home / "new" / str(node)),
            "esker.storage.directory.path": str(home / "store"),
        }
    )


def options(home: Path, **changed: Any) -> Options:
    nodes = tuple(settings(home, node) for node in PORTS)
    return Options(**{"cluster_id": NEW_ID, "nodes": nodes, **changed})


def write_objects(home: Path, *object_ids: int) -> None:
    """What the lost cluster has stored."""
    keys = ObjectKeys(prefix="", cluster_id=CLUSTER_ID, coordinator_partition=0)
    for object_id in object_ids:
        path = home / "store" / keys.key(object_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"batches")


async def no_wait(_: float) -> None:
    pass


def restore(home: Path, *sources: Path, sleep: Any = no_wait, **changed: Any) -> Done:
    scratch = home / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    with prepare(sources, scratch) as prepared:
        return asyncio.run(restore_cluster(prepared, options(home, **changed), sleep=sleep))


def make_home(path: Path) -> Path:
    """A store, a broker's directory that survived, and a place for new directories."""
    (path / "new").mkdir()
    write_objects(path, 0, 1)
    write_node(path / "101", lost_logs())
    return path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return make_home(tmp_path)


def contents(home: Path) -> dict[str, bytes]:
    """Every file of the new nodes."""
    found = {}
    for path in sorted((home / "new").rglob("*")):
        if path.is_file() and path.name != "meta.properties":  # it names a random directory id
            found[str(path.relative_to(home))] = path.read_bytes()
    return found


def test_each_voter_gets_every_log_at_the_same_epoch_and_a_broker_an_empty_directory(
    home: Path,
) -> None:
    done = restore(home, home / "101")
    files = RealFileSystem()
    assert not done.missing
    for node in PORTS:
        path = home / "new" / str(node)
        assert read_meta_properties(files, path).cluster_id == NEW_ID
        logs = sorted(one.name for one in path.iterdir() if one.is_dir())
        assert logs == (sorted(group.name for group in LOGS) if node < 100 else [])
    epochs = {
        state.epoch
        for node in (1, 2, 3)
        for group in LOGS
        if (state := read_quorum_state(files, home / "new" / str(node) / group.name))
    }
    assert len(epochs) == 1


def test_a_voters_directory_can_be_a_source_again(home: Path) -> None:
    restore(home, home / "101")
    with Sources([home / "new" / "1"]) as sources:
        assert sources.groups == [METADATA_GROUP, *sorted(LOGS[1:], key=lambda g: g.topic)]
        assert not [text for one in sources.directories for text in one.refused]


class KilledError(Exception):
    """The process ends here."""


@pytest.mark.parametrize(
    "step", ["write_claim", "sleep", "missing_objects", "first directory", "third directory"]
)
def test_a_restore_that_was_killed_at_any_step_is_completed_by_the_next_run(
    home: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if step.endswith("directory"):
        write = directories.write_directory
        calls: list[int] = []

        def write_some(files: Any, node: Any, *rest: Any) -> None:
            calls.append(node.node_id)
            if len(calls) == (1 if step == "first directory" else 3):
                path = node.log_dir.with_name(f"{node.log_dir.name}.restoring-{NEW_ID}")
                path.mkdir()
                (path / "half").write_text("written")
                raise KilledError
            write(files, node, *rest)

        monkeypatch.setattr(restoring, "write_directory", write_some)
    elif step != "sleep":

        async def killed(*_: Any) -> Any:
            raise KilledError

        monkeypatch.setattr(restoring, step, killed)

    async def kill(_: float) -> None:
        raise KilledError

    with pytest.raises(KilledError):
        restore(home, home / "101", sleep=kill if step == "sleep" else no_wait)
    monkeypatch.undo()
    restore(home, home / "101")
    again = contents(home)
    shutil.rmtree(home / "new")
    (home / "new").mkdir()
    restore(home, home / "101")
    assert contents(home) == again


def test_a_finished_restore_says_so_and_writes_nothing(home: Path) -> None:
    restore(home, home / "101")
    (home / "new" / "1" / "mark").write_text("the node has run since")
    restore(home, home / "101")
    assert (home / "new" / "1" / "mark").exists()


def test_a_restore_waits_twice_as_long_as_a_proof_of_the_old_brokers_is_valid(home: Path) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        assert (home / "store" / claim_key("", CLUSTER_ID, 1)).exists(), "waits before its claim"
        assert not list((home / "new").iterdir()), "writes before it has waited"
        waited.append(seconds)

    restore(home, home / "101", sleep=sleep)
    assert waited == [60.0]


def test_the_operators_word_that_the_old_cluster_is_stopped_replaces_the_wait(home: Path) -> None:
    async def sleep(_: float) -> None:
        raise AssertionError("waits")

    restore(home, home / "101", sleep=sleep, old_cluster_is_stopped=True)


def test_a_second_restore_of_the_same_cluster_is_refused(home: Path) -> None:
    restore(home, home / "101")
    shutil.rmtree(home / "new")
    (home / "new").mkdir()
    with pytest.raises(RestoreError, match=f"was restored as cluster {NEW_ID} already"):
        restore(home, home / "101", cluster_id=OTHER_ID)
    assert not list((home / "new").iterdir())


def test_a_run_with_other_sources_under_the_same_id_is_refused(home: Path) -> None:
    restore(home, home / "101")
    logs = lost_logs()
    shorter = {**logs, COORDINATOR: logs[COORDINATOR][:-1]}
    other = write_node(home / "102", shorter, node_id=102)
    with pytest.raises(RestoreError, match="was begun from other sources"):
        restore(home, other)


def test_a_restored_cluster_that_is_lost_too_is_restored_as_the_next_timeline(home: Path) -> None:
    restore(home, home / "101")
    (home / "new").rename(home / "old")
    (home / "new").mkdir()
    with prepare([home / "old" / "2"], home / "scratch2") as prepared:
        done = asyncio.run(
            restore_cluster(prepared, options(home, cluster_id=OTHER_ID), sleep=no_wait)
        )
        assert prepared.restored.timeline == 2
        image = prepared.restored.image
        assert [one.cluster_id for one in image.ancestors.clusters] == [CLUSTER_ID, NEW_ID]
        (topic,) = (one for one in image.iter_topics() if not one.is_internal)
        assert image.leader_epochs(topic, 0).starts == ((0, 0), (2, 20))
    assert not done.missing


def test_objects_that_the_store_lacks_are_named_and_nothing_is_written(home: Path) -> None:
    keys = ObjectKeys(prefix="", cluster_id=CLUSTER_ID, coordinator_partition=0)
    (home / "store" / keys.key(1)).unlink()
    with pytest.raises(RestoreError, match=r"lacks 1 objects .* \(of coordinator 0: 1\)"):
        restore(home, home / "101")
    assert not list((home / "new").iterdir())
    assert restore(home, home / "101", accepts_missing_objects=True).missing == {0: {1}}


def _log_starts(home: Path, node: int) -> tuple[int, int]:
    """Return the log start and high watermark of the topic's partition in a new directory."""
    (path,) = (home / "new" / str(node) / COORDINATOR.name).glob("*.checkpoint")
    with CheckpointReader(RealFileSystem(), path) as reader:
        (topic,) = (r for _, r in reader.records() if isinstance(r, DisklessTopicState))
    return topic.log_start_offsets[0], topic.high_watermarks[0]


@pytest.mark.parametrize(("missing", "start"), [((0,), 10), ((0, 1), 20), ((1,), 0)])
def test_a_partition_begins_behind_the_missing_objects_at_its_start(
    home: Path, missing: tuple[int, ...], start: int
) -> None:
    keys = ObjectKeys(prefix="", cluster_id=CLUSTER_ID, coordinator_partition=0)
    for object_id in missing:
        (home / "store" / keys.key(object_id)).unlink()
    restore(home, home / "101", accepts_missing_objects=True)
    assert [_log_starts(home, node) for node in (1, 2, 3)] == [(start, 20)] * 3


def test_voters_are_not_written_by_runs_that_found_different_objects(home: Path) -> None:
    keys = ObjectKeys(prefix="", cluster_id=CLUSTER_ID, coordinator_partition=0)
    (home / "store" / keys.key(0)).unlink()
    restore(home, home / "101", accepts_missing_objects=True)
    shutil.rmtree(home / "new" / "2")
    write_objects(home, 0)
    with pytest.raises(RestoreError, match="by a run that found other objects in the store"):
        restore(home, home / "101", accepts_missing_objects=True)
    assert not (home / "new" / "2").exists()


def test_a_store_that_overwrites_objects_needs_the_operators_word(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def overwrites(*_: Any) -> bool:
        return False

    monkeypatch.setattr(restoring, "has_conditional_writes", overwrites)
    with pytest.raises(RestoreError, match="--i-stopped-the-old-cluster"):
        restore(home, home / "101")
    assert not list((home / "new").iterdir())
    restore(home, home / "101", old_cluster_is_stopped=True)


# --- refusals ----------------------------------------------------------------------------------


def _not_a_log_directory(home: Path) -> list[Path]:
    return [home]


def _another_cluster(home: Path) -> list[Path]:
    return [home / "101", write_node(home / "102", lost_logs(), node_id=102, cluster_id=OTHER_ID)]


def _in_use(home: Path) -> list[Path]:
    DirectoryLock(home / "101")
    return [home / "101"]


def _no_cluster_log(home: Path) -> list[Path]:
    shutil.rmtree(home / "101" / METADATA_GROUP.name)
    return [home / "101"]


def _damaged_properties(home: Path) -> list[Path]:
    (home / "101" / "meta.properties").write_text("version=7\n")
    return [home / "101"]


def _fork(home: Path) -> list[Path]:
    logs: Logs = lost_logs()
    forked = {**logs, COORDINATOR: [(9, record) for _, record in logs[COORDINATOR]]}
    return [home / "101", write_node(home / "102", forked, node_id=102)]


def _damaged_and_perhaps_newer(home: Path) -> list[Path]:
    logs = lost_logs()
    damaged = write_node(home / "102", logs, node_id=102, unknown={COORDINATOR: 3})
    (segment,) = (damaged / COORDINATOR.name).glob("*.log")
    data = bytearray(segment.read_bytes())
    data[-5] ^= 1
    segment.write_bytes(data)
    newer = {**logs, COORDINATOR: [*logs[COORDINATOR][:-3], (9, logs[COORDINATOR][-3][1])]}
    return [damaged, write_node(home / "103", newer, node_id=103, unknown={COORDINATOR: 1})]


@pytest.mark.parametrize(
    ("sources", "sentence"),
    [
        (_not_a_log_directory, r"is no node's log directory: meta.properties is missing"),
        (_another_cluster, rf"101 is of cluster {CLUSTER_ID}, and .*102 is of cluster {OTHER_ID}"),
        (_in_use, r"101 is in use by a running node: stop the node"),
        (_no_cluster_log, r"no source has a copy of __cluster_metadata-0 that can be used"),
        (_damaged_properties, r"meta.properties: version '7', known are 0 and 1"),
        (_damaged_and_perhaps_newer, r"102/.* is damaged, and may have been newer than .*103"),
        (_fork, r"__diskless-metadata-0 has forked: .* leave one of the two sources out"),
    ],
)
def test_sources_that_cannot_be_restored_are_refused_with_a_sentence(
    home: Path, sources: Callable[[Path], list[Path]], sentence: str
) -> None:
    paths = sources(home)
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    with pytest.raises(RestoreError, match=sentence):
        restore(home, *paths)
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before


def test_a_restore_overwrites_no_directory(home: Path) -> None:
    (home / "new" / "2").mkdir()
    (home / "new" / "2" / "precious").write_text("data")
    with pytest.raises(RestoreError, match=rf"rename it to .*new/2.before-{NEW_ID}"):
        restore(home, home / "101")
    assert [one.name for one in (home / "new").iterdir()] == ["2"]
    assert not (home / "store" / "lineage").exists()


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"cluster_id": CLUSTER_ID}, "is the id of the lost cluster"),
        ({"cluster_id": "short"}, "--cluster-id: "),
        ({"without": 101}, "no --config is a broker's"),
        ({"without": 2}, "names voter 2, and no --config is that voter's"),
    ],
)
def test_nodes_that_make_no_cluster_are_refused(
    home: Path, changed: dict[str, Any], sentence: str
) -> None:
    without = changed.pop("without", None)
    if without is not None:
        changed["nodes"] = tuple(settings(home, node) for node in PORTS if node != without)
    with pytest.raises(RestoreError, match=sentence):
        restore(home, home / "101", **changed)
    assert not (home / "store" / "lineage").exists()


def test_an_unreachable_store_is_an_error_and_nothing_is_written(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: Any) -> bool:
        raise StorageError("lineage", "unreachable")

    monkeypatch.setattr(restoring, "has_conditional_writes", fails)
    with pytest.raises(StorageError, match="unreachable"):
        restore(home, home / "101")
    assert not list((home / "new").iterdir())
