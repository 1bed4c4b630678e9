"""`esker features` on a cluster that was formatted at the former release's level, then upgraded."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen
from uuid import UUID

import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from esker.cli import app
from esker.server.bootstrap import bootstrap_records, write_bootstrap
from esker.server.node import controller_settings
from esker.server.storage import format_storage
from esker.settings.config import load_config
from raft.segments.files import RealFileSystem
from records.features import SUPPORTED
from records.kafka_errors import ErrorCode
from records.rpc.brokers import BrokerRegistrationRequest, BrokerRegistrationResponse
from records.rpc.cluster import ApiVersionsRequest, ApiVersionsResponse
from records.types import NodeId
from records.uuids import encode_uuid, random_uuid
from tests.clients.cluster import EskerCluster
from tests.coordinator.controller.world import registration
from tests.ports import free_port
from tests.raft.driver.client import Client
from tests.waiting import DEADLINE_S, wait_until

RUNNER: Final = CliRunner()
CONTROLLER, BROKER = 1, 101
METRICS: Final = "esker.metrics.listener"
HIGHEST: Final = SUPPORTED["esker.version"].highest


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EskerCluster]:
    """One controller and one broker, formatted at esker.version 1."""
    own = {node: {METRICS: f"127.0.0.1:{free_port()}"} for node in (CONTROLLER, BROKER)}
    with EskerCluster(
        tmp_path_factory.mktemp("features"),
        brokers=1,
        quorum=(CONTROLLER,),
        settings_of=own,
        format_options=("--feature", "esker.version=1"),
    ) as running:
        running.start()
        yield running


def esker(cluster: EskerCluster, *words: str, code: int = 0, controller: bool = False) -> str:
    option, node = ("controller", CONTROLLER) if controller else ("server", BROKER)
    at = f"127.0.0.1:{cluster.ports[node]}"
    ran = RUNNER.invoke(app, ["features", *words, f"--bootstrap-{option}", at])
    assert ran.exit_code == code, f"{words}: {ran.output}\n{ran.exception!r}"
    return ran.stdout if code == 0 else ran.stderr


def described(cluster: EskerCluster, *, controller: bool = False) -> dict[str, Any]:
    found = json.loads(esker(cluster, "describe", "--json", controller=controller))
    assert found["epoch"] > 0
    return {feature.pop("name"): feature for feature in found["features"]}


def announced(cluster: EskerCluster, version: int) -> tuple[dict[str, int], dict[str, int], int]:
    """What a broker's ApiVersions has: highest supported levels, finalized levels, the epoch."""
    request = ApiVersionsRequest(client_software_name="t", client_software_version="1")
    with Client("127.0.0.1", cluster.ports[BROKER]) as client:
        answer = client.ask(request, ApiVersionsResponse, version)
    return (
        {feature.name: feature.max_version for feature in answer.supported_features},
        {feature.name: feature.max_version_level for feature in answer.finalized_features},
        answer.finalized_features_epoch,
    )


def measured(cluster: EskerCluster, node: int) -> dict[str, float]:
    """Return a node's metrics of esker.version, by the end of their names."""
    (place,) = re.findall(rf"{METRICS}=(.*)", cluster.properties(node).read_text())
    with urlopen(f"http://{place}/metrics") as page:
        families = list(text_string_to_metric_families(page.read().decode()))
    return {
        sample.name.rpartition("_level")[0].rpartition("kafka_server_")[2]: sample.value
        for family in families
        for sample in family.samples
        if sample.labels.get("feature_name") == "esker.version"
    }


def test_a_feature_upgrade_of_a_cluster_reaches_every_node(cluster: EskerCluster) -> None:
    """In one test, since a finalized level has no way back."""
    for controller in (False, True):
        assert described(cluster, controller=controller)["esker.version"] == {
            "min": 1, "max": HIGHEST, "finalized": 1,
        }  # fmt: skip
    supported = {"metadata.version": 27, "esker.version": HIGHEST}
    rest = {"group.version": 0, "kraft.version": 0, "transaction.version": 2}
    for version, expected in ((2, {}), (3, supported), (4, supported | rest)):
        highest, finalized, epoch = announced(cluster, version)
        assert highest == expected
        assert finalized == ({"esker.version": 1, "metadata.version": 27} if version > 2 else {})
        assert (epoch > 0) == (version > 2)
    shown = esker(cluster, "describe").splitlines()
    assert re.split(r"\s{2,}", shown[0]) == ["Feature", "Supported", "Finalized"]
    assert re.split(r"\s{2,}", shown[1]) == ["esker.version", f"1-{HIGHEST}", "1"]
    assert measured(cluster, BROKER)["metadata_loader_finalized"] == 1

    said = esker(cluster, "upgrade", "--feature", "esker.version=2", "--dry-run")
    assert said == "esker.version can be upgraded to 2.\n"
    refused = esker(cluster, "upgrade", "--feature", f"esker.version={HIGHEST + 1}", code=1)
    assert refused == (
        "esker: The update failed for all features since the following feature had an error: "
        f"Invalid update version {HIGHEST + 1} for feature esker.version. Local controller 1 only "
        f"supports versions 1-{HIGHEST}. `esker features describe` prints the levels\n"
    )
    assert described(cluster, controller=True)["esker.version"]["finalized"] == 1

    assert (
        esker(cluster, "upgrade", "-f", "esker.version=2") == "esker.version was upgraded to 2.\n"
    )
    for controller in (False, True):
        wait_until(
            lambda: described(cluster, controller=controller)["esker.version"]["finalized"] == 2,  # noqa: B023
            "the node shows the level",
        )
    again = esker(cluster, "upgrade", "-f", "esker.version=2", "--json", controller=True)
    assert json.loads(again) == {"features": {"esker.version": 2}, "dryRun": False}
    for unsafe, sentence in (
        ((), "Refusing to perform the requested downgrade"),
        (("--unsafe",), "Unsafe metadata downgrade is not supported"),
    ):
        assert sentence in esker(cluster, "downgrade", "-f", "esker.version=1", *unsafe, code=1)
    assert esker(cluster, "downgrade", "-f", "metadata.version=25").endswith("downgraded to 25.\n")

    old = registration(
        777,
        cluster_id=cluster.cluster_id,
        features=tuple(
            BrokerRegistrationRequest.Feature(
                name=name, min_supported_version=15, max_supported_version=27
            )
            for name in ("metadata.version",)
        ),
        incarnation_id=UUID(int=7),
    )
    with Client("127.0.0.1", cluster.ports[CONTROLLER], timeout_s=20) as client:
        answer = client.ask(old, BrokerRegistrationResponse, 4)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION

    for node in (BROKER, CONTROLLER):
        assert measured(cluster, node) == {
            "metadata_loader_finalized": 2,
            "node_metrics_maximum_supported": HIGHEST,
            "node_metrics_minimum_supported": 1,
        }
        lines = [line for line in cluster.output(node).splitlines() if "action=finalize" in line]
        assert sum("feature=esker.version level=2 before=1" in line for line in lines) == 1, lines
        cluster.kill(node)
    cluster.start()
    assert described(cluster)["esker.version"]["finalized"] == 2, "after a restart of all nodes"


def test_a_controllers_settings_contain_the_ids_of_all_voters(tmp_path: Path) -> None:
    voters = ",".join(f"{node}@127.0.0.1:{9_000 + node}" for node in (1, 2, 3))
    file = tmp_path / "node.properties"
    file.write_text(
        "process.roles=controller\nnode.id=2\nlisteners=CONTROLLER://127.0.0.1:9002\n"
        f"controller.quorum.voters={voters}\nlog.dirs={tmp_path}\n"
    )
    controller = controller_settings(load_config(file), "cluster", ()).controller
    assert (controller.node_id, controller.voters) == (2, {1, 2, 3})


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("features", "upgrade"), "--feature"),
        (("features", "upgrade", "-f", "esker.version"), "'esker.version' is not NAME=LEVEL"),
        (("features", "upgrade", "-f", "esker.version=-1"), "0 to 32767"),
        (("features", "upgrade", "-f", "esker.version=32768"), "0 to 32767"),
        (("features", "downgrade", "-f", "a=1", "-f", "a=2"), "a is given twice"),
        (("storage", "format", "-c", "x", "-t", "y", "-f", "a=1"), "metadata.version"),
        (("storage", "format", "-c", "x", "-t", "y", "-f", "esker.version=6"), "1 to 5, not 6"),
        (("storage", "format", "-c", "x", "-t", "y", "-f", "esker.version=0"), "1 to 5, not 0"),
    ],
)
def test_a_command_reports_an_invalid_feature_option_as_a_usage_error_that_names_it(
    words: tuple[str, ...], named: str
) -> None:
    ran = RUNNER.invoke(app, list(words), env={"COLUMNS": "500"})
    assert ran.exit_code == 2, ran.output
    assert named in ran.stderr


def test_a_node_stops_with_a_remedy_at_a_feature_level_that_it_does_not_support(
    tmp_path: Path,
) -> None:
    """As a voter that was started again at the former release, after the upgrade."""
    file, home, port = tmp_path / "node.properties", tmp_path / "node", free_port()
    file.write_text(
        f"process.roles=controller\nnode.id=1\nlisteners=CONTROLLER://127.0.0.1:{port}\n"
        f"controller.quorum.voters=1@127.0.0.1:{port}\nlog.dirs={home}\n"
    )
    cluster_id = encode_uuid(random_uuid())
    format_storage(load_config(file), cluster_id)
    (home / "bootstrap.checkpoint").unlink()
    records = bootstrap_records(
        cluster_id, [NodeId(1)], bench_log=False, features={"esker.version": HIGHEST + 1}
    )
    write_bootstrap(RealFileSystem(), home, records)
    ran = subprocess.run(
        [sys.executable, "-m", "esker", "start", str(file)],
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert ran.returncode == 1, ran.stderr
    assert ran.stderr.splitlines()[-1] == (
        f"esker: the cluster runs at esker.version {HIGHEST + 1}, and this version of Esker "
        f"supports 1 to {HIGHEST}: start this node with the version of Esker that the others have"
    )
