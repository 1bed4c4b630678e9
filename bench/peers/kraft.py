"""Java KRaft as a peer: three `TestRaftServer`s from the released jars.

Upstream's own harness: the leader appends records to itself as fast as it is told to, so no client
and no request is measured, and records travel in batches of 25 ms. It prints a mean over all its
life every five seconds; the last line counts, after the JVM has warmed up.
"""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path
from typing import Final
from uuid import uuid4

from records.uuids import encode_uuid
from tests.interop.kafka_release import KafkaMissingError, KafkaSetupError, fetch
from tests.interop.kafka_run import Kafka
from tests.raft.driver.cluster import free_ports

OFFERED_PER_S: Final = 100_000
RECORD_BYTES: Final = 100
LIFE_S: Final = 40
_LINE: Final = re.compile(r"Throughput \(bytes/second\): ([\d.]+)")


def records_per_s(directory: Path) -> float | str:
    """Return the records per second of a KRaft leader, or the reason why Kafka cannot run."""
    try:
        kafka = Kafka(fetch())
    except (KafkaMissingError, KafkaSetupError) as error:
        return str(error).splitlines()[0]
    ports = dict(zip((1, 2, 3), free_ports(3), strict=True))
    voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in ports.items())
    running = []
    for node, port in ports.items():
        home = directory / f"kraft{node}"
        home.mkdir()
        config = directory / f"kraft{node}.properties"
        config.write_text(
            f"process.roles=controller\nnode.id={node}\ncontroller.quorum.voters={voters}\n"
            f"controller.listener.names=CONTROLLER\nlisteners=CONTROLLER://127.0.0.1:{port}\n"
            f"log.dirs={home}\n"
        )
        command = kafka.command(
            "kafka.tools.TestRaftServer", "--config", config,
            "--replica-directory-id", encode_uuid(uuid4()),
            "--throughput", str(OFFERED_PER_S), "--record-size", str(RECORD_BYTES),
        )  # fmt: skip
        with (directory / f"kraft{node}.out").open("wb") as output:
            running.append(subprocess.Popen(command, stdout=output, stderr=output))
    time.sleep(LIFE_S)
    for process in running:
        process.kill()
        process.wait()
    said = "".join((directory / f"kraft{node}.out").read_text() for node in ports)
    found = [float(figure) / RECORD_BYTES for figure in _LINE.findall(said)]
    return found[-1] if found else "TestRaftServer printed no figure"
