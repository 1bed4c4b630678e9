"""A second batch coordinator, on a cluster that runs: commits go on while either's leader dies."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Final

from click.testing import Result
from typer.testing import CliRunner

from esker.cli import app
from tests.clients.cluster import EskerCluster
from tests.clients.confluent import Confluent
from tests.nemesis import anomalies
from tests.nemesis.audited import check_audit
from tests.nemesis.broker_faults import SETTINGS, BrokerNemesis
from tests.nemesis.record_traffic import CALM, Traffic
from tests.nemesis.rounds import PARTITIONS, read_logs
from tests.nemesis.test_nemesis import seed_of_run
from tests.waiting import wait_until

OLD: Final = "old"
NEW: Final = "new"
SECOND: Final = "__diskless-metadata-1"


def told(cluster: EskerCluster, *words: str) -> Result:
    controllers = ",".join(f"{host}:{port}" for host, port in cluster.controllers)
    return CliRunner().invoke(app, [*words, "--bootstrap-controller", controllers])


def esker(cluster: EskerCluster, *words: str) -> str:
    result = told(cluster, *words)
    assert result.exit_code == 0, result.output
    return result.output


def coordinators(cluster: EskerCluster, topic: str) -> set[int]:
    found = json.loads(esker(cluster, "topics", "describe", "--topic", topic, "--json"))
    return {partition["coordinator"] for partition in found["topics"][0]["partitions"]}


def check(cluster: EskerCluster, traffic: Traffic, topic: str) -> None:
    traffic.read_up_to(read_logs(cluster, traffic.history, topic))
    anomalies.check(traffic.history)


def test_two_batch_coordinators_keep_committing_batches_while_their_leaders_are_killed(
    tmp_path: Path,
) -> None:
    random = Random(seed_of_run())
    with EskerCluster(tmp_path / "cluster", settings=SETTINGS) as cluster:
        cluster.start()
        client = Confluent(cluster.bootstrap)
        client.create_topic(OLD, PARTITIONS, {})
        esker(cluster, "topics", "alter", "--topic", "__diskless-metadata", "--partitions", "2")
        wait_until(
            lambda: not told(cluster, "quorum", "describe", "--group", SECOND).exit_code,
            "the second coordinator has a leader",
        )
        client.create_topic(NEW, PARTITIONS, {})
        assert coordinators(cluster, OLD) == {0}
        assert coordinators(cluster, NEW) == {1}, "a new topic goes where there is less"
        with (
            Traffic(cluster.bootstrap, OLD, PARTITIONS, (CALM, CALM)) as old,
            Traffic(cluster.bootstrap, NEW, PARTITIONS, (CALM, CALM)) as new,
        ):
            for fault in ("kill_coordinator", "kill_second_coordinator"):
                BrokerNemesis(cluster, old, random).run([fault])
                BrokerNemesis(cluster, new, random).wait_for_records()
        check(cluster, old, OLD)
        check(cluster, new, NEW)
        audited = check_audit(cluster)
        committed = [log.name for log in audited.logs if log.commits]
        assert committed == ["__diskless-metadata-0", "__diskless-metadata-1"]
        print(f"{old.acknowledged} and {new.acknowledged} records acknowledged")
