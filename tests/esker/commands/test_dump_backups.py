"""`esker dump-log` of a backup's manifest.

Source: docs/design/backup.md#format-of-a-manifest.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from typer.testing import CliRunner

from diskless.backup.manifest import (
    BackedUpCheckpoint,
    BackedUpLog,
    BackedUpRange,
    DataPart,
    Manifest,
    OldestCut,
)
from esker.cli import app

TIME = 1_700_000_000_000


def manifest() -> Manifest:
    part = DataPart("00000000000000000003-ab", 16, 100, "f" * 64)
    log = BackedUpLog(
        topic="__diskless-metadata",
        partition=0,
        topic_id=UUID(int=7),
        end=50,
        epoch=4,
        checkpoint=BackedUpCheckpoint(30, 3, (part,)),
        ranges=(BackedUpRange(30, 50, part._replace(position=116)),),
    )
    return Manifest(
        number=3,
        cluster_id="AAAAAAAAAAAAAAAAAAAAAQ",
        broker_id=101,
        release="1.0",
        cut=3,
        began_ms=TIME,
        oldest=OldestCut(1, {}),
        logs=(log,),
    )


def write(directory: Path, data: bytes) -> Path:
    path = directory / "backup" / "AAAAAAAAAAAAAAAAAAAAAQ" / "manifest" / f"{3:020d}"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    return path


def dump(*words: object, code: int = 0) -> Any:
    ran = CliRunner().invoke(app, ["dump-log", *map(str, words)])
    assert ran.exit_code == code, (ran.stdout, ran.stderr, ran.exception)
    return ran


def test_a_manifest_is_printed_with_the_place_of_each_logs_bytes(tmp_path: Path) -> None:
    path = write(tmp_path, manifest().to_bytes())
    text = dump(path).stdout
    assert "manifest of a backup" in text
    assert "number=3" in text
    assert "(2023-11-14 22:13:20.000)" in text
    assert "1 entry; 1 data objects, 200 bytes" in text
    lines = [json.loads(line) for line in dump(path, "--json").stdout.splitlines()]
    assert [line["type"] for line in lines] == [
        "file", "backupManifest", "backupLog", "backupCheckpointPart", "backupRange", "end",
    ]  # fmt: skip
    assert (lines[4]["startOffset"], lines[4]["endOffset"], lines[4]["position"]) == (30, 50, 116)
    key = path.relative_to(tmp_path)
    assert dump("--store", tmp_path, key).stdout.startswith(str(path))


def test_verify_says_that_a_manifest_is_sound_or_what_is_wrong(tmp_path: Path) -> None:
    path = write(tmp_path, data := manifest().to_bytes())
    said = dump("--verify", path).stdout
    assert said == f"sound    {path}: manifest of a backup, 1 entry; 1 data objects, 200 bytes\n"
    path.write_bytes(data[:-5])
    said = dump("--verify", path, code=1).stdout
    assert said.startswith(f"DAMAGED  {path}: the manifest is damaged: its checksum does not match")
    assert "restore another cut by --at" in said


@pytest.mark.parametrize("check", [[], ["--verify"]])
def test_the_manifest_of_a_newer_release_names_the_release(
    tmp_path: Path, check: list[str]
) -> None:
    line = json.dumps({"format": 2, "release": "9.9"}).encode()
    path = write(tmp_path, line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n")
    said = dump(*check, path, code=2).stderr
    assert "has format 2, written by Esker 9.9" in said
    assert said.count("\n") == 1
