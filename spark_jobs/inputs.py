"""One input, three places it may come from: a node's directory, a running quorum, an archive.

    logs = open_logs(Inputs(log_dir=Path("/var/lib/esker")))
    logs = open_logs(Inputs(controllers=(("127.0.0.1", 9093),)))
    logs = open_logs(Inputs(archive="s3://bucket/archive"))

A directory alone is believed as far as its node has written down what is committed, which may be
some seconds ago; with a quorum beside it, that is asked.

Source: DESIGN §10.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spark_jobs.logs import Logs, LogsError, ReplicaLogs, logs_in
from spark_jobs.object_store import StoreOptions, open_store
from spark_jobs.quorum_link import Address
from spark_jobs.quorum_logs import QuorumLogs

AMAZON: Final = StoreOptions()


@dataclass(frozen=True, slots=True)
class Inputs:
    """Where logs are read from: an archive, or a directory or a quorum or both."""

    log_dir: Path | None = None
    controllers: tuple[Address, ...] = ()
    archive: str | None = None  # DIR or s3://BUCKET/PREFIX
    timeout_ms: int = 10_000
    store: StoreOptions = AMAZON  # how the archive's bucket is reached


def open_logs(inputs: Inputs) -> Logs:
    """The logs to read.

    Raises:  LogsError; CorruptFileError; OSError.
    """
    if inputs.archive is not None:
        from spark_jobs.archived_logs import ArchivedLogs  # Avro: not everybody has it

        if inputs.log_dir is not None or inputs.controllers:
            raise LogsError("an archive stands alone: it holds only what is committed")
        try:
            store = open_store(inputs.archive, inputs.store)
        except ValueError as error:
            raise LogsError(str(error)) from None
        return ArchivedLogs(store)
    if inputs.log_dir is None:
        if not inputs.controllers:
            raise LogsError("say where the logs are: a log directory, a quorum, or an archive")
        return QuorumLogs(inputs.controllers, timeout_ms=inputs.timeout_ms)
    if not inputs.controllers:
        return ReplicaLogs(inputs.log_dir)
    quorum = QuorumLogs(inputs.controllers, timeout_ms=inputs.timeout_ms)
    names = logs_in(inputs.log_dir)
    committed = {name: quorum.log(name).end_offset() for name in names if name in quorum.names()}
    logs = ReplicaLogs(inputs.log_dir, committed)
    if logs.cluster_id != quorum.cluster_id:
        raise LogsError(
            f"{inputs.log_dir} is of cluster {logs.cluster_id}, the quorum of {quorum.cluster_id}"
        )
    return logs
