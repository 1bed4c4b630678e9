"""`esker spark orphans`: what it prints, and with which code it ends.

Source: docs/design/pipeline.md#orphans.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from esker.cli import app
from esker.commands.spark import orphans as spark_orphans
from records.diskless import LeaseClosedRecord, LeaseGrantedRecord, LeasesForgottenRecord
from records.frame import encode_record
from spark_jobs.orphans.listing import Naming
from spark_jobs.readers.logs import LogsError
from spark_jobs.readers.object_store import StoreOptions, open_store
from tests.diskless.stores.conftest import new_bucket, s3_endpoint
from tests.spark_jobs.orphans_world import MemoryLogs

__all__ = ["s3_endpoint"]

NAMING = Naming("", "c-1")
START_MS = 1_700_000_000_000
GRACE_MS = 72 * 3_600_000
RECORDS = [
    LeaseGrantedRecord(
        lease_id=0, broker_id=1, broker_epoch=1, first_object_id=0, object_count=100,
        granted_at_ms=0, closed_lease_ids=(),
    ),
    LeaseClosedRecord(lease_id=0, closed_at_ms=0, end_object_id=0, reason=0),
    LeasesForgottenRecord(lease_ids=(0,)),
]  # fmt: skip


class Clock:
    """A clock that a test moves."""

    now_ms = START_MS


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Set the command's clock, and logs with one expired lease."""
    moved = Clock()
    logs = MemoryLogs([encode_record(record) for record in RECORDS], "c-1")
    monkeypatch.setattr(spark_orphans, "_now_ms", lambda: moved.now_ms)
    monkeypatch.setattr(spark_orphans, "open_logs", lambda _: logs)
    return moved


class Command:
    """Runs `esker spark orphans` with its own store and files."""

    def __init__(self, directory: Path, store: str, *more: str) -> None:
        self.directory = directory
        self.out = directory / "plan.jsonl"
        self.where = ["--store", store, *more, "--bootstrap-controller", "127.0.0.1:1"]

    def __call__(self, *words: str, code: int = 0) -> Result:
        ran = CliRunner().invoke(app, ["spark", "orphans", *words])
        assert ran.exit_code == code, f"{ran.exit_code}: {ran.output} {ran.exception!r}"
        return ran

    def plan(self, *more: str, code: int = 0) -> Result:
        files = ["--listings", str(self.directory / "listings"), "--out", str(self.out)]
        return self("plan", *self.where, *files, *more, code=code)

    def json(self, *more: str) -> Any:
        return json.loads(self.plan("--json", *more).stdout)


@pytest.fixture(params=["directory", "s3"])
def command(request: pytest.FixtureRequest, tmp_path: Path) -> Command:
    """Make a store with two old orphans and an object of another cluster."""
    if request.param == "directory":
        where, options = str(tmp_path / "objects"), StoreOptions()
        made = Command(tmp_path, where)
    else:
        config = new_bucket(request.getfixturevalue("s3_endpoint"))
        where, options = f"s3://{config.bucket}", StoreOptions(config.endpoint_url, config.region)
        arguments = ["--endpoint", str(config.endpoint_url), "--region", str(config.region)]
        made = Command(tmp_path, where, *arguments)
    store = open_store(where, options)
    for key in (NAMING.key(0, 1), NAMING.key(0, 2), Naming("", "c-2").key(0, 3)):
        store.write(key, b"abc")
    store.close()
    return made


def test_the_orphans_command_writes_a_plan_after_two_listings_a_grace_period_apart(
    command: Command, clock: Clock
) -> None:
    clock.now_ms = START_MS + 10**12  # later than any file's time
    first = command.plan().stdout
    assert "Waiting: 2 orphans of 6 bytes, seen for less than the grace" in first
    assert "Besides 1 objects of other clusters, left alone: " in first
    assert "Planned: 0 objects of 0 bytes" in first
    clock.now_ms += GRACE_MS
    report = command.json()
    assert report["planned"] == {"objects": 2, "bytes": 6}
    keys = sorted(NAMING.key(0, object_id) for object_id in (1, 2))
    assert [row["key"] for row in report["sample"]] == keys
    assert json.loads(command("show", str(command.out), "--json").stdout) == report
    shown = command("show", str(command.out)).stdout
    assert all(key in shown for key in keys)
    left = [path.name for path in (command.directory / "listings").iterdir()]
    assert left == ["seen.jsonl"]


@pytest.mark.parametrize("command", ["directory"], indirect=True)
def test_orphans_dangling_reports_no_loss_for_logs_without_objects(
    command: Command, clock: Clock
) -> None:
    assert clock.now_ms == START_MS
    ran = command("dangling", *command.where)
    assert "Nothing is missing." in ran.stdout


@pytest.mark.parametrize("command", ["directory"], indirect=True)
class TestRefusals:
    """Errors that end the command before it writes a file."""

    def test_the_orphans_command_accepts_a_grace_period_below_a_day_only_with_its_flag(
        self, command: Command, clock: Clock
    ) -> None:
        assert clock.now_ms == START_MS
        for grace in ("23h", "1s", "1439m"):
            stderr = command.plan("--grace", grace, code=2).stderr
            assert "--dangerously-short-grace" in stderr.replace("\n", "")
            assert not command.out.exists()
        command.plan("--grace", "24h")
        command.plan("--grace", "1s", "--dangerously-short-grace")

    @pytest.mark.parametrize("grace", ["", "72", "h", "-1h", "1.5h", "72 h", "1w", "9999999h"])
    def test_the_orphans_command_refuses_an_invalid_grace_period_with_a_usage_error(
        self, command: Command, clock: Clock, grace: str
    ) -> None:
        assert clock.now_ms == START_MS
        command.plan("--grace", grace, code=2)

    def test_the_orphans_command_exits_with_the_environment_error_code_if_the_store_is_missing(
        self, command: Command, clock: Clock
    ) -> None:
        assert clock.now_ms == START_MS
        command.where[1] = str(command.directory / "not-mounted")
        stderr = command.plan(code=3).stderr
        assert stderr == (
            f"esker: the object store: {command.where[1]}: No such file or directory\n"
        )
        assert not command.out.exists()
        command.where[1] = "gs://bucket"
        command.plan(code=2)

    def test_the_orphans_command_exits_with_the_stale_plan_code_if_the_clock_was_set_back(
        self, command: Command, clock: Clock
    ) -> None:
        command.plan()
        clock.now_ms -= 5
        assert "the clocks disagree" in command.plan(code=4).stderr

    def test_the_orphans_command_exits_with_the_environment_error_code_if_logs_are_unreadable(
        self, command: Command, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(_: object) -> MemoryLogs:
            raise LogsError("nobody leads")

        assert clock.now_ms == START_MS
        monkeypatch.setattr(spark_orphans, "open_logs", broken)
        assert command.plan(code=3).stderr == "esker: nobody leads\n"

    def test_the_orphans_command_refuses_to_apply_a_modified_or_large_plan(
        self, command: Command, clock: Clock
    ) -> None:
        options = ("--bootstrap-controller", "127.0.0.1:1")
        clock.now_ms = START_MS + 10**12
        command.plan()
        clock.now_ms += GRACE_MS
        command.plan()
        assert "--allow-large" in command("apply", str(command.out), *options, code=2).stderr
        command.out.write_text(command.out.read_text().replace("abc", "x") + "{}")
        assert "make a new one" in command("apply", str(command.out), *options, code=4).stderr
        assert "make a new one" in command("show", str(command.out), code=4).stderr
        command("show", str(command.directory / "none"), code=3)

    def test_the_orphans_command_applies_a_plan_again_after_no_controller_was_reachable(
        self, command: Command, clock: Clock
    ) -> None:
        clock.now_ms = START_MS + 10**12
        command.plan()
        clock.now_ms += GRACE_MS
        command.plan()
        options = ("--allow-large", "--bootstrap-controller", "127.0.0.1:1", "--timeout-ms", "200")
        ran = command("apply", str(command.out), *options, code=5)
        assert "Run the same command to continue." in ran.stdout

    def test_the_orphans_command_refuses_the_spark_engine_for_a_csv_inventory(
        self, command: Command, clock: Clock
    ) -> None:
        assert clock.now_ms == START_MS
        csv = command.directory / "all.csv"
        csv.write_text(f"key,size_bytes,modified_ms\n{NAMING.key(0, 9)},7,0\n")
        taken = ("--listing", str(csv), "--taken-at", "1000")
        assert command.json(*taken)["waiting"] == {"objects": 1, "bytes": 7}
        command.plan(*taken, "--engine", "spark", code=2)
        assert "Add --taken-at" in command.plan(*taken[:2], code=3).stderr
        ahead = ("--listing", str(csv), "--taken-at", str(START_MS + 1))
        assert "is in the future" in command.plan(*ahead, code=4).stderr

    def test_the_orphans_command_accepts_an_inventory_that_is_some_hours_old(
        self, command: Command, clock: Clock
    ) -> None:
        """S3 delivers an inventory hours after it was made."""
        csv = command.directory / "all.csv"
        csv.write_text(f"key,size_bytes,modified_ms\n{NAMING.key(0, 9)},7,0\n")
        clock.now_ms = START_MS + 2 * GRACE_MS
        for taken_ms in (START_MS, START_MS + GRACE_MS):
            report = command.json("--listing", str(csv), "--taken-at", str(taken_ms))
            assert report["expires_at_ms"] == clock.now_ms + 3_600_000
        assert report["planned"]["objects"] == 1

    def test_each_orphans_plan_has_its_own_journal(self, command: Command, clock: Clock) -> None:
        """A nightly sweep writes its plan to the same file each time."""
        options = ("--allow-large", "--bootstrap-controller", "127.0.0.1:1", "--timeout-ms", "200")
        clock.now_ms = START_MS + 10**12
        command.plan()
        for _ in range(2):
            clock.now_ms += GRACE_MS
            plan_id = command.json()["plan_id"]
            journal = command.out.with_name(f"{command.out.name}.{plan_id}.journal")
            entry = {"plan_id": plan_id, "rows_done": 2, "taken": 2, "refused": {}, "sample": []}
            journal.write_text(json.dumps(entry) + "\n")
            ran = command("apply", str(command.out), *options)
            assert "2 of 2 objects handed over" in ran.stdout
