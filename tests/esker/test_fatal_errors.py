"""What ends a node is told in one sentence: where, what, and what to do next."""

from __future__ import annotations

import errno
import os
import re
import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coordinator.batch.log_records import UnreadableRecordError
from coordinator.batch.sqlite.database import DamagedStateError
from diskless.lineage import SupersededError
from esker.cli import app
from esker.server.ending import run_to_end
from esker.server.fatal_errors import describe_fatal_error
from esker.server.storage import format_storage
from esker.settings.config import parse_config
from raft.driver.errors import LostDiskError
from raft.driver.storage import Storage
from raft.segments.errors import (
    CorruptFileError,
    CorruptLogError,
    DiskFullError,
    FlushFailedError,
    MissingLogError,
)
from raft.segments.files import Mode, RealFileSystem
from raft.segments.log import LogConfig
from raft.wire.responses import Group
from records.types import NodeId
from records.uuids import encode_uuid, random_uuid
from snapshot.errors import TruncatedFileError

HOME = Path("/data")
LOG = HOME / "g-0" / "0.log"


def of_sqlite(code: int, text: str) -> sqlite3.Error:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


FULL = of_sqlite(sqlite3.SQLITE_FULL, "database or disk is full")
READ_ONLY = of_sqlite(sqlite3.SQLITE_READONLY, "attempt to write a readonly database")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (DiskFullError(path=LOG, reason="No space left"), "g-0/0.log: No space left: make room"),
        (DamagedStateError("a row"), "SQLite in /data: a row: start it again, and it rebuilds"),
        (FULL, "SQLite in /data: database or disk is full: make room"),
        (READ_ONLY, "a readonly database: let this user write it, or delete it"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "/data: Disk quota exceeded: make room"),
        (OSError(errno.EROFS, "Read-only file system", "/data/x"), "/data/x: .* mount it so that"),
        (OSError(errno.EMFILE, "Too many open files"), r"Too many open files: .* \(ulimit -n\)"),
        (OSError(errno.EACCES, "Permission denied", "/data/x"), "run as the user that owns it"),
        (FlushFailedError(path=LOG, reason="Input/output error"), "check the disk"),
        (UnreadableRecordError(7, "type 99 is unknown"), "the version of Esker that the others"),
        (OSError(errno.EISDIR, "Is a directory", "/a.tmp", None, "/a"), "^/a: Is a directory"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_the_message_of_a_fatal_node_error_names_the_remedy(error: Exception, says: str) -> None:
    assert re.search(says, describe_fatal_error(error, HOME))


@pytest.mark.parametrize(
    "error",
    [
        CorruptLogError(path=LOG, position=9, offset=3, reason="crc"),
        CorruptFileError(path=LOG, reason="not JSON"),
        MissingLogError(path=LOG, reason="no segment"),
        TruncatedFileError(path=LOG, position=0, reason="ends"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_the_remedy_in_an_error_about_damaged_data_depends_on_the_nodes_role(
    error: Exception,
) -> None:
    assert re.search(
        "0.log.*if the other voters .* format --rejoin`$", describe_fatal_error(error, HOME)
    )
    assert "copies alone: empty /data, run" in describe_fatal_error(error, HOME, votes=False)


def test_a_node_that_finds_damaged_data_exits_with_an_error_that_names_the_remedy(
    tmp_path: Path,
) -> None:
    home = tmp_path / "node"
    settings = {
        "process.roles": "broker",
        "node.id": "101",
        "controller.quorum.voters": "1@127.0.0.1:1",
        "controller.listener.names": "CONTROLLER",
        "listeners": "PLAINTEXT://127.0.0.1:2",
        "log.dirs": str(home),
        "esker.storage.directory.path": str(tmp_path / "store"),
    }
    file = tmp_path / "node.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    format_storage(parse_config(settings), encode_uuid(random_uuid()))
    (home / "meta.properties").write_bytes(b"")
    ran = CliRunner().invoke(app, ["start", str(file)])
    assert (ran.exit_code, ran.stderr.count("\n")) == (1, 1), ran.stderr
    assert f"{home / 'meta.properties'}: " in ran.stderr
    assert f"empty {home}, run `esker storage format`" in ran.stderr


def test_a_broker_whose_cluster_was_restored_ends_with_one_line(tmp_path: Path) -> None:
    async def superseded() -> None:
        raise SupersededError("cluster a was restored as cluster b")

    assert run_to_end(superseded(), tmp_path, votes=False) == "cluster a was restored as cluster b"


def test_the_error_for_a_directory_in_place_of_a_file_names_the_path(tmp_path: Path) -> None:
    """Reading it would fail without a name."""
    with pytest.raises(IsADirectoryError) as caught:
        RealFileSystem().open(tmp_path, Mode.READ)
    assert caught.value.filename == str(tmp_path)
    assert "take the directory away" in describe_fatal_error(caught.value, HOME)


def test_opening_a_raft_group_without_its_partition_metadata_file_raises_a_lost_disk_error(
    tmp_path: Path,
) -> None:
    files, group = RealFileSystem(), Group("g", 0, random_uuid())
    config = LogConfig()
    Storage.create(files, tmp_path, group, config, recovering=False)
    os.unlink(tmp_path / "g-0" / "partition.metadata")  # noqa: PTH108
    with pytest.raises(LostDiskError, match=r"has no partition\.metadata"):
        Storage.open(files, tmp_path, group, config, (NodeId(1),))
