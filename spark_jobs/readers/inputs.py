"""Opens the logs of an input: a node's directory, a running quorum, or an archive.

    logs = open_logs(Inputs(log_dir=Path("/var/lib/esker")))
    logs = open_logs(Inputs(controllers=(("127.0.0.1", 9093),)))
    logs = open_logs(Inputs(archive="s3://bucket/archive"))

A directory alone is read up to the high watermark that its node last saved, which may be some
seconds old; with a quorum beside it, the quorum gives the high watermark.

The trap is that a high watermark is not enough. A node that was cut off from its quorum holds
records that never were committed, at offsets where others were meanwhile. So the reader checks that
the leader's log contains the directory's last record; if not, the saved high watermark counts.

Source: docs/design/pipeline.md#one-input; invariants 2 and 3 (docs/design/invariants.md); KIP-595,
Fetch (diverging epoch).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
    """The source of logs: an archive, or a directory, a quorum, or both of these."""

    log_dir: Path | None = None
    controllers: tuple[Address, ...] = ()
    archive: str | None = None  # DIR or s3://BUCKET/PREFIX
    timeout_ms: int = 10_000
    store: StoreOptions = AMAZON  # how the archive's bucket is reached
    security: Mapping[str, str] | None = field(default=None, repr=False)
    """Client properties of TLS and SASL of connections to controllers; None: the process's."""

    def open_quorum(self) -> QuorumLogs:
        """Connect to the controllers. Raises LogsError."""
        return QuorumLogs(self.controllers, timeout_ms=self.timeout_ms, security=self.security)


def open_logs(inputs: Inputs) -> Logs:
    """Open the logs that the options name: of an archive, a log directory or a running quorum.

    Raises:  LogsError; CorruptFileError; OSError.
    """
    if inputs.archive is not None:
        from spark_jobs.readers.archived_logs import ArchivedLogs  # Avro: not everybody has it

        if inputs.log_dir is not None or inputs.controllers:
            raise LogsError(
                "give no other source beside an archive: it holds committed records only"
            )
        try:
            store = open_store(inputs.archive, inputs.store)
        except ValueError as error:
            raise LogsError(str(error)) from None
        return ArchivedLogs(store)
    if inputs.log_dir is None:
        if not inputs.controllers:
            raise LogsError("name the source of the logs: a log directory, a quorum, or an archive")
        return inputs.open_quorum()
    if not inputs.controllers:
        return ReplicaLogs(inputs.log_dir)
    quorum = inputs.open_quorum()
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
    committed = {
        name: _committed_end(quorum.log(name), alone, inputs.log_dir / name) for name in names
    }
    return ReplicaLogs(inputs.log_dir, committed)


def _committed_end(leader: QuorumLog, alone: ReplicaLogs, directory: Path) -> int:
    """Return the end offset of the committed part of a log directory's log.

    Raises:  LogsError if no source knows it; DamagedFileError, CorruptFileError; OSError.
    """
    files, committed = LogFiles(directory), leader.end_offset()
    try:
        end_offset = min(committed, files.end_offset(committed))
        epoch = epoch_before(files, end_offset)
    except DamagedFileError:
        return committed  # reading reports the damage; other logs can still be read
    if epoch is None or leader.contains(end_offset, epoch):
        return end_offset
    return alone.log(leader.name).end_offset()
