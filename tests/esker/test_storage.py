"""`esker storage`: the only thing that makes a log directory."""

import contextlib
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from esker.cli import app
from esker.server.bootstrap import bootstrap_records
from esker.server.storage import StorageError, format_storage, open_storage
from esker.settings.config import NodeSettings, parse_config
from raft.driver.registry import REJOIN_FILE
from records.metadata import FeatureLevelRecord, PartitionRecord, TopicRecord
from tests.simulation.disk import PowerLoss, SimulatedDisk

CLUSTER_ID = "QFqbzYkRRZ-Rf2EQpZ0lNQ"


def config_in(directory: Path, node_id: int = 1, **more: str) -> NodeSettings:
    return parse_config(properties(directory, node_id) | more)


def properties(directory: Path, node_id: int = 1) -> dict[str, str]:
    return {
        "process.roles": "controller",
        "node.id": str(node_id),
        "controller.quorum.voters": "1@127.0.0.1:9093,2@127.0.0.1:9094,3@127.0.0.1:9095",
        "listeners": f"CONTROLLER://127.0.0.1:{9092 + node_id}",
        "log.dirs": str(directory),
    }


def test_format_writes_the_node_id_into_the_log_directory(tmp_path):
    config = config_in(tmp_path / "a")
    made = format_storage(config, CLUSTER_ID)
    meta, records = open_storage(config)
    assert (meta.cluster_id, meta.node_id) == (CLUSTER_ID, 1)
    assert meta.directory_id == made.directory_id
    assert records == bootstrap_records(CLUSTER_ID, config.voters, bench_log=False)


def test_the_bootstrap_file_has_the_metadata_version_before_the_internal_topics():
    records = bootstrap_records(CLUSTER_ID, [3, 1, 2], bench_log=True)
    assert records[0] == FeatureLevelRecord(name="metadata.version", feature_level=27)
    assert set(records[1:3]) == {
        FeatureLevelRecord(name="esker.version", feature_level=5),
        FeatureLevelRecord(name="transaction.version", feature_level=2),
    }
    topics = [r for r in records if isinstance(r, TopicRecord)]
    assert [t.name for t in topics] == [
        "__diskless-metadata",
        "__consumer_offsets",
        "esker-bench-log",
    ]
    partitions = [r for r in records if isinstance(r, PartitionRecord)]
    assert [p.topic_id for p in partitions] == [t.topic_id for t in topics]
    assert all(p.replicas == p.isr == (1, 2, 3) for p in partitions)


def test_a_cluster_formatted_at_esker_version_1_has_no_esker_version_record(tmp_path):
    """Releases before the feature then read its log, and may join."""
    config = config_in(tmp_path / "a")
    levels = {"esker.version": 1, "metadata.version": 20}
    format_storage(config, CLUSTER_ID, features=levels)
    _, records = open_storage(config)
    assert [record for record in records if isinstance(record, FeatureLevelRecord)] == [
        FeatureLevelRecord(name="metadata.version", feature_level=20)
    ]


def test_format_writes_the_same_bootstrap_file_on_every_node_of_a_cluster(tmp_path):
    files = []
    for node_id in (1, 2, 3):
        format_storage(config_in(tmp_path / str(node_id), node_id), CLUSTER_ID)
        files.append((tmp_path / str(node_id) / "bootstrap.checkpoint").read_bytes())
    assert files[0] == files[1] == files[2]
    other = bootstrap_records("AAAAAAAAAAAAAAAAAAAABw", [1, 2, 3], bench_log=False)
    assert other != bootstrap_records(CLUSTER_ID, [1, 2, 3], bench_log=False)


def test_format_refuses_a_formatted_directory_and_changes_no_file(tmp_path):
    config = config_in(tmp_path / "a")
    format_storage(config, CLUSTER_ID)
    before = (tmp_path / "a" / "meta.properties").read_bytes()
    with pytest.raises(StorageError, match="formatted already"):
        format_storage(config, CLUSTER_ID)
    assert (tmp_path / "a" / "meta.properties").read_bytes() == before


def test_format_refuses_a_directory_with_other_files(tmp_path):
    (tmp_path / "holiday.jpg").write_bytes(b"x")
    with pytest.raises(StorageError, match=r"holiday\.jpg"):
        format_storage(config_in(tmp_path), CLUSTER_ID)


def test_format_with_rejoin_writes_the_rejoin_file(tmp_path):
    config = config_in(tmp_path / "a")
    format_storage(config, CLUSTER_ID, rejoin=True)
    assert (tmp_path / "a" / REJOIN_FILE).exists()


@pytest.mark.parametrize("rejoin", [False, True])
@pytest.mark.parametrize("steps", range(12))
def test_format_succeeds_when_repeated_after_a_power_loss(steps, rejoin):
    config = config_in(Path("/data"))
    disk = SimulatedDisk()
    disk.power_loss_at = disk.steps + steps
    with contextlib.suppress(PowerLoss):
        format_storage(config, CLUSTER_ID, rejoin=rejoin, files=disk)
    disk.crash(random.Random(steps))
    with contextlib.suppress(StorageError):  # formatted already
        format_storage(config, CLUSTER_ID, rejoin=rejoin, files=disk)
    meta, _ = open_storage(config, disk)
    assert meta.cluster_id == CLUSTER_ID
    assert disk.exists(config.log_dir / REJOIN_FILE) == rejoin


def test_format_with_rejoin_after_an_interruption_cannot_be_repeated_without_rejoin(tmp_path):
    """It would give a node that may have voted its votes back."""
    (tmp_path / REJOIN_FILE).touch()
    with pytest.raises(StorageError, match=REJOIN_FILE):
        format_storage(config_in(tmp_path), CLUSTER_ID)


def test_a_start_with_an_unmounted_disk_fails_before_any_directory_is_formatted(tmp_path):
    """Formatting its mount point would begin a voter that has forgotten everything."""
    with pytest.raises(StorageError, match=r"disk mounted.*lost, .*--rejoin"):
        open_storage(config_in(tmp_path / "a"))


def test_the_error_for_a_missing_meta_properties_beside_logs_names_the_file(tmp_path):
    format_storage(config_in(tmp_path / "a"), CLUSTER_ID)
    (tmp_path / "a" / "meta.properties").rename(tmp_path / "kept")
    (tmp_path / "a" / "esker.server.groups").write_text("0\n")
    with pytest.raises(StorageError, match=r"meta\.properties is gone, and logs are there"):
        open_storage(config_in(tmp_path / "a"))


def test_a_node_refuses_an_unformatted_directory_and_another_nodes_directory(tmp_path):
    with pytest.raises(StorageError, match="not formatted"):
        open_storage(config_in(tmp_path / "a"))
    format_storage(config_in(tmp_path / "a"), CLUSTER_ID)
    with pytest.raises(StorageError, match="belongs to node 1"):
        open_storage(config_in(tmp_path / "a", node_id=2))


def test_storage_commands_report_errors_in_one_line(tmp_path):
    runner = CliRunner()
    file = tmp_path / "node.properties"
    text = "".join(f"{k}={v}\n" for k, v in properties(tmp_path / "a").items())
    file.write_text(text)
    good = ["storage", "format", "--config", str(file), "--cluster-id", CLUSTER_ID]
    assert runner.invoke(app, ["storage", "info", "--config", str(file)]).exit_code == 1
    wrong_id = runner.invoke(app, [*good[:-1], "my-cluster"])
    assert (wrong_id.exit_code, wrong_id.stderr.count("\n")) == (1, 1)
    assert "storage random-uuid" in wrong_id.stderr
    assert runner.invoke(app, good).exit_code == 0
    assert CLUSTER_ID in runner.invoke(app, ["storage", "info", "--config", str(file)]).stdout
    file.write_text(text + "nope=1\n")
    refused = runner.invoke(app, good)
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert "nope" in refused.stderr
    missing = runner.invoke(app, ["storage", "info", "--config", str(tmp_path / "none")])
    assert (missing.exit_code, missing.stderr.count("\n")) == (2, 1)


def test_format_accepts_the_output_of_random_uuid(tmp_path):
    printed = CliRunner().invoke(app, ["storage", "random-uuid"]).stdout.strip()
    format_storage(config_in(tmp_path / "a"), printed)
