"""Settings of the quorum's logs: elections, segments, checkpoints, the controller's clocks.

Source: Apache Kafka 4.x (Configuration), KIP-595, KIP-835, KIP-630 and KIP-876.
"""

from __future__ import annotations

from typing import Final

from coordinator.controller.decide.context import Limits
from esker.settings.base import Setting
from esker.settings.values import MEBIBYTE, MILLISECONDS, boolean, integer, one_of, ratio
from raft.core.config import QuorumConfig
from snapshot.log_start import LogStartSettings
from snapshot.policy import SnapshotSettings

SETTINGS: Final = (
    Setting(
        "controller.quorum.election.timeout.ms",
        MILLISECONDS,
        1000,
        "Milliseconds without a leader before a voter campaigns (up to twice that).",
    ),
    Setting(
        "controller.quorum.fetch.timeout.ms",
        integer(QuorumConfig().fetch_max_wait_ms + 1, 2**31 - 1),  # waiting is no silence
        2000,
        "Milliseconds without an answer from the leader before a follower campaigns.",
    ),
    Setting(
        "controller.quorum.election.backoff.max.ms",
        MILLISECONDS,
        1000,
        "Maximum milliseconds that a less preferred successor waits after a leader resigned.",
    ),
    Setting(
        "controller.quorum.request.timeout.ms",
        MILLISECONDS,
        2000,
        "Milliseconds after which a request to another node times out.",
    ),
    Setting(
        "controller.quorum.retry.backoff.ms",
        MILLISECONDS,
        20,
        "Milliseconds before a failed request is repeated.",
    ),
    Setting(
        "esker.max.topics",
        integer(1, 10_000_000),
        Limits().max_topics,
        "Maximum number of topics; the creation of another one is refused with POLICY_VIOLATION.",
    ),
    Setting(
        "esker.max.partitions",
        integer(1, 100_000_000),
        Limits().max_partitions,
        "Maximum number of partitions of all topics; a request that would exceed it is refused "
        "with POLICY_VIOLATION.",
    ),
    Setting(
        "metadata.log.segment.bytes",
        integer(8 * MEBIBYTE, 2**31 - 1),
        128 * MEBIBYTE,
        "Bytes after which a log begins a new file. The newest is read through when a node starts, "
        "hence less than Kafka's 1 GiB.",
    ),
    Setting(
        "metadata.log.segment.ms",
        MILLISECONDS,
        7 * 24 * 3600 * 1000,
        "Milliseconds after which a log starts a new segment.",
    ),
    Setting(
        "metadata.log.max.record.bytes.between.snapshots",
        integer(1, 2**63 - 1),
        SnapshotSettings().max_bytes_between,
        "Bytes of log since the newest checkpoint before another is taken (see the ratio).",
    ),
    Setting(
        "metadata.snapshot.min.changed_records.ratio",
        ratio,
        SnapshotSettings().min_changed_ratio,
        "Share of a checkpoint's records (0 to 1) that must have changed before another is "
        "taken; one is also taken once the log since it is larger than it.",
    ),
    Setting(
        "metadata.log.max.snapshot.interval.ms",
        integer(0, 2**63 - 1),
        SnapshotSettings().max_interval_ms,
        "Milliseconds after which a checkpoint is taken if anything was committed; 0: never.",
    ),
    Setting(
        "metadata.start.offset.lag.time.max.ms",
        integer(0, 2**63 - 1),
        LogStartSettings().max_lag_ms,
        "Milliseconds for which a log keeps records before a checkpoint for a lagging replica.",
    ),
    Setting(
        "metadata.max.retention.bytes",
        integer(-1, 2**63 - 1),
        LogStartSettings().max_retention_bytes,
        "Bytes of a log and its checkpoints above which no replica holds its start; -1: no bound.",
    ),
    Setting(
        "esker.archive.max.lag.bytes",
        integer(0, 2**63 - 1),
        LogStartSettings().archive_max_lag_bytes,
        "Bytes of a log that are kept for a running archive that lags; above that the log's start "
        "moves on, and the archive continues from a checkpoint. 0: nothing is kept for archives.",
    ),
    Setting(
        "metadata.max.idle.interval.ms",
        integer(0, 2**31 - 1),
        500,
        "Milliseconds of silence after which the leader writes a NoOpRecord; 0: never.",
    ),
    Setting(
        "broker.session.timeout.ms",
        MILLISECONDS,
        9_000,
        "Milliseconds of silence after which a broker is fenced; once its connection is closed, it "
        "has two heartbeat intervals, at least 1000 ms, to send a heartbeat on another one.",
    ),
    Setting(
        "esker.bench.log.enable",
        boolean,
        False,
        "Serves the group `esker-bench-log` on the controller listener, for benchmarks.",
    ),
    Setting(
        "esker.bench.log.state",
        one_of("none", "kv"),
        "none",
        "State machine of `esker-bench-log`: `kv` keeps the newest value of each key; `none`.",
    ),
)
