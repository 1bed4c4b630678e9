"""One input, three places it may come from: a node's directory, a running quorum, an archive.

    logs = open_logs(Inputs(log_dir=Path("/var/lib/esker")))
    logs = open_logs(Inputs(controllers=(("127.0.0.1", 9093),)))
    logs = open_logs(Inputs(archive="s3://bucket/archive"))

A directory alone is believed as far as its node has written down what is committed, which may be
some seconds ago; with a quorum beside it, that is asked.

The surprise is that a high watermark is not enough. A node that was cut off from its quorum holds
records that never were committed, at offsets where others were meanwhile. So the leader is asked
whether its log goes through where ours ends; if not, the directory is believed alone.

Source: docs/design/pipeline.md#one-input; invariants 2 and 3 (docs/design/invariants.md); KIP-595,
Fetch (diverging epoch).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from snapshot.errors import DamagedFileError
from spark_jobs.readers.log_files import LogFiles
from spark_jobs.readers.logs import Logs, LogsError, ReplicaLogs
from spark_jobs.readers.object_store import StoreOptions, open_store
from spark_jobs.readers.quorum_link import Address
from spark_jobs.readers.quorum_logs import QuorumLog, QuorumLogs
from spark_jobs.readers.spans import epoch_before

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
        from spark_jobs.readers.archived_logs import ArchivedLogs  # Avro: not everybody has it

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
    alone = ReplicaLogs(inputs.log_dir)
    if alone.cluster_id != quorum.cluster_id:
        raise LogsError(
            f"{inputs.log_dir} is of cluster {alone.cluster_id}, the quorum of {quorum.cluster_id}"
        )
    if missing := set(quorum.names()) - set(alone.names()):
        raise LogsError(
            f"{inputs.log_dir} has no log {min(missing)}, which the cluster has: it would "
            "be left out; read the quorum alone"
        )
    names = quorum.names()
    committed = {name: _committed(quorum.log(name), alone, inputs.log_dir / name) for name in names}
    return ReplicaLogs(inputs.log_dir, committed)


def _committed(leader: QuorumLog, alone: ReplicaLogs, directory: Path) -> int:
    """How far a directory's log is the quorum's, and committed.

    Raises:  LogsError if nobody can say; DamagedFileError, CorruptFileError; OSError.
    """
    files, committed = LogFiles(directory), leader.end_offset()
    try:
        end_offset = min(committed, files.end_offset(committed))
        epoch = epoch_before(files, end_offset)
    except DamagedFileError:
        return committed  # whoever reads it is told, and may want the other logs all the same
    if epoch is None or leader.goes_through(end_offset, epoch):
        return end_offset
    return alone.log(leader.name).end_offset()
