"""One node as a process of its own: `python -m tests.raft.driver.node_main '<json>'`.

SIGTERM stops it cleanly; anything fatal ends it with exit code 1 and one line.
"""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import signal
import sys
from pathlib import Path
from uuid import UUID

from esker.server.node_services import BenchState
from esker.server.snapshot_hosting import SnapshotKeeping
from raft.core.config import QuorumConfig
from raft.core.voters import Endpoint, ReplicaKey, Voter
from raft.driver import NodeConfig, run_node
from raft.driver import snapshot_serving as serving
from raft.net import run
from raft.segments.log import LogConfig
from records.metadata import FeatureLevelRecord, PartitionRecord, TopicRecord
from records.schema import MetadataRecord
from records.types import NodeId
from snapshot.log_start import LogStartSettings
from snapshot.policy import SnapshotSettings

TOPIC_IDS = {
    "esker-bench-log": UUID(int=77),
    "__diskless-metadata": UUID(int=78),
    "__consumer_offsets": UUID(int=79),
}


def bootstrap(topics: list[str], voters: list[int]) -> tuple[MetadataRecord, ...]:
    """The records that `storage format` would have written."""
    records: list[MetadataRecord] = [FeatureLevelRecord(name="metadata.version", feature_level=27)]
    for topic in topics:
        records.append(TopicRecord(name=topic, topic_id=TOPIC_IDS[topic]))
        records.append(
            PartitionRecord(
                partition_id=0,
                topic_id=TOPIC_IDS[topic],
                replicas=tuple(voters),
                isr=tuple(voters),
                removing_replicas=(),
                adding_replicas=(),
                leader=voters[0],
                leader_epoch=0,
                partition_epoch=0,
            )
        )
    return tuple(records)


def config_of(settings: dict) -> NodeConfig:
    """A node's configuration from the JSON that `Cluster` hands it."""
    node_id = NodeId(settings["node_id"])
    voters = tuple(
        Voter(
            key=ReplicaKey(NodeId(int(voter))),
            endpoints=(Endpoint("CONTROLLER", host, port),),
        )
        for voter, (host, port) in settings["voters"].items()
    )
    return NodeConfig(
        node_id=node_id,
        cluster_id=settings["cluster_id"],
        directory_id=UUID(settings["directory_id"]),
        log_dir=Path(settings["log_dir"]),
        voters=voters,
        bind_host="127.0.0.1",
        bind_port=settings["port"],
        advertised=Endpoint("CONTROLLER", "127.0.0.1", settings["port"]),
        quorum=QuorumConfig(**settings.get("quorum", {})),
        log=LogConfig(**settings.get("log", {})),
        bootstrap=bootstrap(settings["topics"], [int(voter) for voter in settings["voters"]]),
        snapshot_hosting=snapshot_hosting_of(settings),
        node_service=lambda host: BenchState(host, settings.get("state", "none")),
        bench_log="esker-bench-log" in settings["topics"],
        metrics_host="127.0.0.1" if "metrics_port" in settings else None,
        metrics_port=settings.get("metrics_port", 0),
        max_idle_interval_ms=settings.get("max_idle_interval_ms", 500),
    )


def snapshot_hosting_of(settings: dict) -> SnapshotKeeping:
    """How checkpoints are kept: the settings of `snapshot`, by their fields' names."""
    return SnapshotKeeping(
        node_id=settings["node_id"],
        snapshots=SnapshotSettings(**settings.get("snapshots", {})),
        log_starts=LogStartSettings(**settings.get("log_starts", {})),
    )


async def main(settings: dict) -> None:
    if "max_file_bytes" in settings:  # a disk that is full for this process alone
        limit = settings["max_file_bytes"]
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    if "answer_bytes" in settings:  # snapshots that take their time
        serving.MAX_ANSWER_BYTES = settings["answer_bytes"]  # type: ignore[misc]
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await run_node(config_of(settings), stop)


def entry() -> int:
    settings = json.loads(sys.argv[1])
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s.%(msecs)03d %(message)s", datefmt="%H:%M:%S"
    )
    try:
        if settings.get("profile"):
            import cProfile

            profile = cProfile.Profile()
            profile.enable()
            try:
                run(main(settings))
            finally:
                profile.disable()
                profile.dump_stats(settings["profile"])
        else:
            run(main(settings))
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        if settings.get("traceback"):
            raise
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(entry())
