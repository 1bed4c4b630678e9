"""Tests that each mistake of a user gives one sentence with the remedy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from diskless.stores.interface import StorageError
from esker.commands.spark import app
from esker.commands.spark.common import apply_command, reason
from raft.net.errors import NetError, Reason
from spark_jobs.plans.retention_plan import PlanError, read_plan, write_plan
from spark_jobs.readers.object_store import StoreOptions, describe_failure, open_store
from spark_jobs.readers.quorum_link import explain_missing_leader
from tests.coordinator.batch.subjects import KEYS
from tests.diskless.stores.conftest import s3_endpoint
from tests.spark_jobs.test_applying import plan, row
from tests.spark_jobs.test_audit_command import a_node, node
from tests.spark_jobs.test_audit_store import the_world

__all__ = ["node", "s3_endpoint"]  # fixtures


def run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def test_spark_commands_refuse_a_binary_file_as_a_plan_without_printing_the_files_bytes(
    tmp_path: Path,
) -> None:
    path = tmp_path / "plan.jsonl"
    path.write_bytes(bytes(range(256)) * 20)
    with pytest.raises(PlanError) as caught:
        read_plan(path)
    assert str(caught.value) == f"{path} is not a whole retention plan: make a new one"


def test_the_show_commands_report_a_missing_plan_file_without_an_errno(tmp_path: Path) -> None:
    missing = tmp_path / "none"
    for words in (["retention", "show"], ["orphans", "show"]):
        assert run(*words, missing) == (3, f"esker: {missing}: No such file or directory\n")
    assert reason(ValueError("odd")) == "odd"


def test_the_error_for_a_damaged_log_suggests_reading_the_log_of_another_node(node: Path) -> None:
    (log,) = (node / "__diskless-metadata-0").glob("*.log")
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    code, said = run("report", "--log-dir", node, "--out", node.parent / "report")
    assert code == 3
    assert said.startswith(f"esker: {log}, position ")
    assert "use another node's --log-dir, or --bootstrap-controller HOST:PORT" in said


def test_the_error_for_a_clusters_directory_suggests_its_nodes_directories(node: Path) -> None:
    code, said = run("audit", "--log-dir", node.parent)
    assert code == 3
    assert said == (
        f"esker: {node.parent} is not a node's log directory: no meta.properties; "
        f"it contains: {node}\n"
    )


def test_the_error_for_a_damaged_archive_suggests_its_verification(
    node: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "archive"
    assert run("archive", "--log-dir", node, "--out", archive)[0] == 0
    for file in archive.glob("data/*/record/*.avro"):
        file.unlink()
    code, said = run("retention", "plan", "--archive", archive, "--out", tmp_path / "plan.jsonl")
    assert code == 3
    assert said.startswith("esker: the archive is damaged: data/")
    assert said.endswith("is gone; `esker spark archive --verify` lists all damage\n")


def test_the_audit_refuses_a_replica_from_a_node_of_another_cluster(
    node: Path, tmp_path: Path
) -> None:
    other = tmp_path / "node2"
    shutil.copytree(node, other)
    meta = other / "meta.properties"
    text = meta.read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("cluster.id")]
    meta.write_text(text.replace(line, "cluster.id=another"))
    code, said = run("audit", "--log-dir", node, "--log-dir", other)
    assert code == 3
    assert said.startswith(f"esker: {other} is of cluster another, {node} of ")


def test_the_error_for_a_store_without_any_objects_suggests_checking_store_and_prefix(
    node: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    options = ("--log-dir", node, "--prefix", KEYS.prefix)
    code, said = run("audit", *options, "--store", tmp_path / "empty")
    assert code == 6
    assert f"{tmp_path / 'empty'} has none of them: is this the cluster's store" in said
    (tmp_path / "store" / KEYS.key(8)).unlink()
    code, said = run("audit", *options, "--store", tmp_path / "store")
    assert (code, "has none of them" in said) == (6, False)
    assert f"{node} may be behind" in said  # what retention removed since looks lost


def test_an_audit_without_violations_does_not_mention_a_lagging_log(node: Path) -> None:
    code, said = run("audit", "--log-dir", node)
    assert (code, "may be behind" in said) == (0, False)


def test_the_suggested_apply_command_is_quoted_for_a_shell() -> None:
    file = Path("p l.jsonl")
    assert apply_command("retention", file, "h:1,g:2") == (
        "esker spark retention apply 'p l.jsonl' --bootstrap-controller h:1,g:2"
    )
    assert apply_command("orphans", file, None).endswith("--bootstrap-controller HOST:PORT")


def test_applying_a_completed_plan_again_sends_no_request_and_reports_the_completion(
    tmp_path: Path,
) -> None:
    path = tmp_path / "plan.jsonl"
    made = plan(row(0), live_bytes=10**6)
    write_plan(made, path)
    journal = tmp_path / f"plan.jsonl.{made.plan_id}.journal"
    entry = {"plan_id": made.plan_id, "row": 0, "error": 0, "log_start": 10}
    journal.write_text(json.dumps(entry) + "\n")
    code, said = run("retention", "apply", path, "--bootstrap-controller", "127.0.0.1:1")
    assert code == 0
    assert "1 of 1 rows applied" in said
    assert f"No request was sent: {journal} has all answers" in said


def test_a_spark_command_reports_a_brokers_address_given_as_a_controllers_address() -> None:
    error = NetError(Reason.UNSUPPORTED, "h:9092 does not serve DescribeQuorumRequest")
    assert explain_missing_leader("log-0", error).endswith(
        "is it a broker's address? --bootstrap-controller wants a controller's"
    )
    refused = NetError(Reason.REFUSED, "h:1")
    assert explain_missing_leader("log-0", refused).endswith(
        "are a majority of the voters running?"
    )


def test_the_error_of_a_spark_command_about_a_store_names_the_store_only_once() -> None:
    missing = StorageError("s3://b", "no such bucket")
    assert describe_failure("s3://b", missing) == "s3://b: no such bucket"
    assert describe_failure("s3://b", StorageError("k", "gone")) == "s3://b: k: gone"


def test_spark_commands_report_a_missing_bucket_in_one_sentence(s3_endpoint: str) -> None:
    store = open_store("s3://no-such-bucket", StoreOptions(s3_endpoint, "us-east-1"))
    with pytest.raises(StorageError) as caught:
        list(store.list("00/"))
    assert str(caught.value) == "s3://no-such-bucket: no such bucket"
    store.close()


def test_the_orphans_command_refuses_listings_of_another_store_and_names_the_difference(
    tmp_path: Path,
) -> None:
    entries, _ = the_world()
    node = a_node(tmp_path / "node1", list(entries))
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    files = ("--listings", tmp_path / "seen", "--out", tmp_path / "plan.jsonl", "--log-dir", node)
    code, said = run("orphans", "plan", "--store", tmp_path / "one", *files)
    assert f"None of the 19 objects that the logs refer to is in {tmp_path / 'one'}: is it" in said
    assert (code, "To apply it" in said) == (0, False), said  # nothing is planned
    code, said = run("orphans", "plan", "--store", tmp_path / "two", *files)
    assert code == 4
    assert said == (
        f"esker: {tmp_path / 'seen'} holds listings of another store ({tmp_path / 'one'}, not "
        f"{tmp_path / 'two'}): use another directory for --listings\n"
    )


def test_the_orphans_command_reports_a_missing_inventory_file_in_one_sentence(
    node: Path, tmp_path: Path
) -> None:
    missing = tmp_path / "all.csv"
    code, said = run(
        "orphans", "plan", "--store", tmp_path / "store", "--listings", tmp_path / "seen",
        "--out", tmp_path / "plan.jsonl", "--log-dir", node, "--listing", missing,
    )  # fmt: skip
    assert (code, said) == (3, f"esker: {missing}: No such file or directory\n")


PLACES = [
    ("retention plan --bootstrap-controller 127.0.0.1:1 --out", "file"),
    ("orphans plan --store . --listings seen --bootstrap-controller 127.0.0.1:1 --out", "file"),
    ("audit --bootstrap-controller 127.0.0.1:1 --out", "file"),
    ("report --bootstrap-controller 127.0.0.1:1 --out", "directory"),
    ("archive --bootstrap-controller 127.0.0.1:1 --out", "directory"),
    ("orphans plan --store . --out p --bootstrap-controller 127.0.0.1:1 --listings", "directory"),
]


@pytest.mark.parametrize(("command", "kind"), PLACES)
def test_a_spark_command_reports_an_unwritable_output_before_it_contacts_a_controller(
    command: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No controller is contacted first: there is none at that address."""
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    Path("directory").mkdir()
    if kind == "file":
        wrong = {
            "directory": "directory is a directory: name a file in it",
            "none/plan": "none/plan cannot be written: there is no directory none",
        }
    else:
        wrong = {
            "file": "file is a file: name a directory",
            "file/deeper/down": "file is a file: name a directory",
        }
    for path, said in wrong.items():
        assert run(*command.split(), path) == (2, f"esker: {said}\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["directory", "file"]
