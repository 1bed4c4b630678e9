"""A cluster is restored from its backup alone, or it is refused by a sentence.

Source: docs/design/backup.md#restoring-from-the-store.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from diskless.backup.manifest import OldestCut
from esker.cli import app
from esker.restore import run as restoring
from esker.restore.errors import RestoreError
from tests.esker.restore.backing_up import back_up, backup_path
from tests.esker.restore.lost import (
    CLUSTER_ID,
    COORDINATOR,
    EPOCH,
    TRANSACTIONS,
    lost_logs,
    transaction_records,
    write_node,
)
from tests.esker.restore.test_command import write_properties
from tests.esker.restore.test_directories import NEW_ID, OTHER_ID, PORTS, make_home


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(restoring, "WAITED_TIMEOUTS", 0)
    return make_home(tmp_path)


def run(*words: object, code: int = 0) -> Any:
    ran = CliRunner().invoke(app, list(map(str, words)))
    assert ran.exit_code == code, (ran.stdout, ran.stderr, ran.exception)
    return ran


def config(home: Path) -> Path:
    write_properties(home)
    return home / "101.properties"


def plan(home: Path, *words: object, code: int = 0) -> Any:
    ran = run("restore", "plan", "--backup", config(home), "--json", *words, code=code)
    return json.loads(ran.stdout) if not code else ran.stderr


def backup(home: Path, name: str, *words: object, code: int = 0) -> Any:
    return run("backup", name, "--config", config(home), *words, code=code)


def all_logs() -> dict[Any, Any]:
    return lost_logs() | {TRANSACTIONS: [(EPOCH, one) for one in transaction_records()]}


def test_a_cluster_is_restored_from_the_store_alone(home: Path) -> None:
    manifest = back_up(home, all_logs())
    found = plan(home)
    assert found["lostClusterId"] == CLUSTER_ID
    assert found["backup"] == manifest.number == 0
    assert (found["records"], found["objects"]) == (20, 2)
    assert found["uncertainPartitions"] == []
    assert {log["log"]: log["knownCommitted"] for log in found["logs"]} == manifest.ends
    assert {log["directory"] for log in found["logs"]} == {"backup 0"}
    text = run("restore", "plan", "--backup", config(home)).stdout
    words = f"--backup {config(home)} --backup-cluster {CLUSTER_ID} --at 0 --config FILE"
    assert words in text
    done = run(
        "restore", "apply", "--cluster-id", NEW_ID, "--backup", config(home), "--at", 0,
        *write_properties(home), "--json",
    )  # fmt: skip
    assert json.loads(done.stdout.splitlines()[-1])["missingObjects"] == []
    assert sorted(one.name for one in (home / "new").iterdir()) == sorted(map(str, PORTS))


def test_a_restored_cluster_has_a_backup_from_which_it_is_restored_in_turn(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its new disks are lost before any of its brokers has written a cut."""
    back_up(home, all_logs())
    words = [
        "restore", "apply", "--cluster-id", NEW_ID, "--backup", config(home), "--at", 0,
        "--backup-cluster", CLUSTER_ID, *write_properties(home),
    ]  # fmt: skip
    assert "has no backup" in run(*words).stdout
    for file in home.glob("*.properties"):
        file.write_text(f"{file.read_text()}esker.backup.enable=true\n")

    async def killed(*_: Any) -> bool:
        raise RestoreError("killed behind the last directory")

    with monkeypatch.context() as patch:
        patch.setattr(restoring, "write_first_backup", killed)
        run(*words, code=1)
    for _ in range(2):
        assert "The store has a backup of the new cluster" in run(*words).stdout
    (manifest,) = (backup_path(home, NEW_ID) / "manifest").iterdir()
    assert int(manifest.name) == 0
    shutil.rmtree(home / "new")
    (home / "new").mkdir()
    found = plan(home, "--backup-cluster", NEW_ID)
    assert (found["timeline"], found["records"], found["objects"]) == (2, 20, 2)
    assert found["uncertainPartitions"] == []


def test_a_directory_and_the_backup_are_sources_together(home: Path) -> None:
    """The broker's directory has one record more, which it did not know to be committed."""
    logs = lost_logs()
    whole = logs[COORDINATOR]
    back_up(home, logs | {COORDINATOR: whole[:-1]})
    source = write_node(home / "102", logs, unknown={COORDINATOR: 3})
    found = plan(home, "--from", source)
    (log,) = (one for one in found["logs"] if one["log"] == COORDINATOR.name)
    assert log["endOffset"] == len(whole)
    assert log["knownCommitted"] == len(whole) - 1  # as the backup proves
    assert log["directory"] == str(source / COORDINATOR.name)


def test_an_older_cut_is_restored_by_its_number_or_time(home: Path) -> None:
    logs = lost_logs()
    whole = logs[COORDINATOR]
    back_up(home, logs | {COORDINATOR: whole[:-1]})
    back_up(home, logs)
    assert plan(home)["records"] == 20
    assert plan(home, "--at", 0)["records"] == 10
    assert plan(home, "--at", "2099-01-01T00:00:00Z")["records"] == 20
    assert "no cut written by 2001" in plan(home, "--at", "2001-01-01T00:00:00+00:00", code=1)
    assert "no cut with number 7: there are those from 0 to 1" in plan(home, "--at", 7, code=1)
    assert "neither the number of a cut nor a time" in plan(home, "--at", "noon", code=1)


def manifest_file(home: Path, number: int = 0) -> Path:
    return backup_path(home) / "manifest" / f"{number:020d}"


def change_manifest(home: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the newest manifest, and give it the right checksum again."""
    path = manifest_file(home)
    found = json.loads(path.read_text().splitlines()[0])
    change(found)
    line = json.dumps(found).encode()
    path.write_bytes(line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n")


def cut_the_manifest(home: Path) -> str:
    path = manifest_file(home)
    path.write_bytes(path.read_bytes()[:-30])
    return "is damaged: its checksum does not match; restore an older cut by --at"


def empty_the_manifest(home: Path) -> str:
    manifest_file(home).write_bytes(b"")
    return "is damaged"


def age_the_format(home: Path) -> str:
    change_manifest(home, lambda found: found.update(format=2, release="9.9"))
    return "has format 2, written by Esker 9.9, and this one knows 1"


def rename_the_manifest(home: Path) -> str:
    manifest_file(home).rename(manifest_file(home, 5))
    return f"is manifest 0 of cluster {CLUSTER_ID}: it was copied from elsewhere"


def lose_the_data(home: Path) -> str:
    for path in (backup_path(home) / "data").iterdir():
        path.unlink()
    return "no such object; restore an older cut by --at"


def cut_the_data(home: Path) -> str:
    for path in (backup_path(home) / "data").iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    return "restore an older cut by --at"


def change_the_data(home: Path) -> str:
    for path in (backup_path(home) / "data").iterdir():
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    return "have another checksum; restore an older cut by --at"


@pytest.mark.parametrize(
    "damage",
    [
        cut_the_manifest,
        empty_the_manifest,
        age_the_format,
        rename_the_manifest,
        lose_the_data,
        cut_the_data,
        change_the_data,
    ],
)
def test_a_damaged_backup_is_refused_by_a_sentence_and_found_by_verify(
    home: Path, damage: Callable[[Path], str]
) -> None:
    back_up(home, lost_logs())
    sentence = damage(home)
    said = plan(home, code=1)
    assert sentence in said
    assert said.startswith("esker: ")
    assert said.count("\n") == 1
    assert sentence in backup(home, "verify", code=1).stdout
    assert not list((home / "new").iterdir())


def test_a_cut_below_the_oldest_is_refused(home: Path) -> None:
    back_up(home, lost_logs())
    newest = back_up(home, all_logs())
    released = json.loads(backup(home, "release", "--json").stdout)
    assert released == {"clusterId": CLUSTER_ID, "number": 2, "givenUp": [0]}
    assert "cannot be restored any more" in plan(home, "--at", 0, code=1)
    assert plan(home)["records"] == 20
    assert newest.as_only_cut() == replace(newest, number=2, oldest=OldestCut(2, newest.ends))


def test_backups_of_several_clusters_need_a_choice(home: Path) -> None:
    assert "the store has no backup below backup/" in plan(home, code=1)
    back_up(home, lost_logs())
    back_up(home, lost_logs(), cluster_id=OTHER_ID)
    assert "choose by --backup-cluster" in plan(home, code=1)
    assert plan(home, "--backup-cluster", OTHER_ID)["lostClusterId"] == OTHER_ID
    said = plan(home, "--backup-cluster", NEW_ID, code=1)
    assert f"no backup of cluster {NEW_ID} below backup/" in said
    assert "--at" in run("restore", "plan", "--from", home / "101", "--at", "1", code=2).stderr


def test_a_directory_of_another_cluster_beside_a_backup_is_refused(home: Path) -> None:
    back_up(home, lost_logs())
    other = write_node(home / "102", lost_logs(), node_id=102, cluster_id=OTHER_ID)
    said = plan(home, "--from", other, code=1)
    assert f"{other} is of cluster {OTHER_ID}" in said
    assert f"is of cluster {CLUSTER_ID}: name the directories of one cluster" in said


def test_the_list_shows_which_backups_can_be_restored(home: Path) -> None:
    back_up(home, lost_logs())
    back_up(home, all_logs())
    backup(home, "release")
    manifest_file(home, 1).write_bytes(b"")
    rows = [line.split() for line in backup(home, "list").stdout.splitlines()]
    assert rows[0] == ["NUMBER", "WRITTEN", "BROKER", "BYTES", "STATE"]
    assert [(row[0], row[-1]) for row in rows[1:]] == [
        ("0", "expired"),
        ("1", "damaged"),
        ("2", "restorable"),
    ]
    found = json.loads(backup(home, "list", "--json").stdout)
    assert [one["state"] for one in found["backups"]] == ["expired", "damaged", "restorable"]
    assert {log["log"] for log in found["backups"][2]["logs"]} == {g.name for g in all_logs()}


def test_verify_reads_every_cut_that_can_be_restored(home: Path) -> None:
    back_up(home, lost_logs())
    back_up(home, all_logs())
    assert "2 backups are sound, up to number 1" in backup(home, "verify", "--all").stdout
    found = json.loads(backup(home, "verify", "--json").stdout)
    assert (found["verified"], found["newest"], found["faults"]) == (1, 1, [])


def test_a_request_that_no_broker_answers_ends_with_a_sentence(home: Path) -> None:
    back_up(home, lost_logs())
    said = backup(home, "now", "--timeout-ms", 600, code=1).stderr
    assert "no broker wrote a backup within 1 s" in said
    requests = sorted(path.name for path in (backup_path(home) / "request").iterdir())
    assert requests == [f"{number:020d}" for number in (1, 2)]
