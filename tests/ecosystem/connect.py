"""A worker of Kafka Connect in distributed mode, and its REST interface."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.ecosystem.java_program import JavaProgram, write_properties
from tests.interop.kafka_run import Kafka
from tests.ports import free_port
from tests.waiting import wait_until

MAIN: Final = "org.apache.kafka.connect.cli.ConnectDistributed"
REQUEST_TIMEOUT_S: Final = 60.0
NOT_YET: Final = (404, 409, 500, 503)  # starting, not joined yet, or its group rebalances


class Worker(JavaProgram):
    """A worker whose settings are Connect's defaults, but for those that only cost a test time."""

    def __init__(self, kafka: Kafka, home: Path, name: str, bootstrap: str, group: str) -> None:
        self._url = f"http://127.0.0.1:{free_port()}"
        settings = _settings(bootstrap, group, self._url)
        properties = write_properties(home / f"{name}.properties", settings)
        super().__init__(kafka, home, name, MAIN, str(properties))

    def configure(self, connector: str, settings: Mapping[str, str]) -> None:
        """Create a connector or change its settings, as soon as the worker's group allows it."""
        self._until_answered("PUT", f"/connectors/{connector}/config", settings)

    def has_running_task(self, connector: str) -> bool:
        """Whether the connector's first task runs, on any worker of the group."""
        status = self._until_answered("GET", f"/connectors/{connector}/status")
        states = [task["state"] for task in status["tasks"]]
        assert "FAILED" not in states, status
        return states[:1] == ["RUNNING"]

    def source_offsets(self, connector: str) -> list[dict[str, Any]]:
        """The committed position of each source partition, as the connector wrote it."""
        answer = self._until_answered("GET", f"/connectors/{connector}/offsets")
        return [entry["offset"] for entry in answer["offsets"]]

    def _until_answered(self, method: str, path: str, body: object = None) -> Any:
        def answer() -> Any:
            self.check_alive()
            data = None if body is None else json.dumps(body).encode()
            headers = {"Content-Type": "application/json"}
            request = urllib.request.Request(self._url + path, data, headers, method=method)
            try:
                with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S) as response:
                    return [json.load(response)]
            except urllib.error.HTTPError as error:
                if error.code in NOT_YET:
                    return None
                raise AssertionError(f"{method} {path}: {error.read()!r}") from error

        found = wait_until(answer, f"Connect answers {method} {path}", retry_on=(OSError,))
        return found[0]


def _settings(bootstrap: str, group: str, url: str) -> dict[str, str]:
    topics = {
        f"{kind}.storage.{key}": value
        for kind in ("offset", "config", "status")
        for key, value in (("topic", f"{group}-{kind}s"), ("replication.factor", "1"))
    }
    converter = "org.apache.kafka.connect.storage.StringConverter"
    return {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "listeners": url,
        "key.converter": converter,
        "value.converter": converter,
        "plugin.discovery": "service_load",
        "offset.flush.interval.ms": "200",
        "scheduled.rebalance.max.delay.ms": "0",
        "session.timeout.ms": "6000",
        "heartbeat.interval.ms": "1000",
        **topics,
    }
