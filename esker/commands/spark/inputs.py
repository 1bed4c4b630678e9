"""The options that name the logs, the same for every command of `esker spark`.

    def report(
        log_dir: LogDir = None,
        bootstrap_controller: FromQuorum = None,
        archive: Archive = None,
        timeout_ms: TimeoutMs = 10_000,
    ) -> None:
        inputs = inputs_of(log_dir, bootstrap_controller, archive, timeout_ms)
        try:
            logs = open_logs(inputs)
            ...
        except reading_errors() as error:
            stop_reading(error)

The logs are in one of three places, or in a directory with a quorum that says how much of it is
committed; a directory alone is read as far as its node has recorded that.

Source: docs/design/pipeline.md#one-input.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from esker.commands.cluster_access import endpoints
from esker.commands.spark.common import DATA_LOSS, ENVIRONMENT, reason, stop
from records.errors import RecordError

if TYPE_CHECKING:
    from spark_jobs.readers.inputs import Inputs
    from spark_jobs.readers.logs import Logs

LogDir = Annotated[
    Path | None,
    typer.Option(
        "--log-dir",
        metavar="DIR",
        help="Log directory (log.dirs) of any node of the cluster, to read logs from.",
    ),
]
FromQuorum = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-controller",
        metavar="HOST:PORT[,...]",
        help="Addresses (host:port,...) of controllers to read logs from; one reachable "
        "address is enough.",
    ),
]
Archive = Annotated[
    str | None,
    typer.Option(
        "--archive",
        metavar="DIR|s3://BUCKET/PREFIX",
        help="Directory or s3://BUCKET/PREFIX of an archive to read instead of logs.",
    ),
]


def inputs_of(
    log_dir: Path | None,
    bootstrap_controller: str | None,
    archive: str | None,
    timeout_ms: int,
    *,
    endpoint: str | None = None,
    region: str | None = None,
) -> Inputs:
    """Return the location of the logs, from --log-dir, --bootstrap-controller or --archive.

    Args:    endpoint, region: those of an archive's bucket (`esker.commands.spark.store`).
    Raises:  typer.BadParameter unless they name one place.
    """
    from spark_jobs.readers.inputs import Inputs
    from spark_jobs.readers.object_store import StoreOptions

    if archive is not None and (log_dir is not None or bootstrap_controller is not None):
        raise typer.BadParameter("--archive cannot be combined with --log-dir or controllers")
    if archive is None and log_dir is None and bootstrap_controller is None:
        raise typer.BadParameter(
            "say where the logs are: --log-dir DIR, --bootstrap-controller HOST:PORT, or --archive"
        )
    controllers: tuple[tuple[str, int], ...] = ()
    if bootstrap_controller is not None:
        found = endpoints(bootstrap_controller, "--bootstrap-controller")
        controllers = tuple((endpoint_of.host, endpoint_of.port) for endpoint_of in found)
    return Inputs(log_dir, controllers, archive, timeout_ms, StoreOptions(endpoint, region))


def open_logs(inputs: Inputs) -> Logs:
    """Open the logs at the location that the command's options name.

    Raises as `reading_errors` says.
    """
    from spark_jobs.readers.inputs import open_logs

    return open_logs(inputs)


def may_be_behind(place: Path | str | None) -> str:
    """Return a warning that outdated logs at `place` make removed objects seem lost."""
    return (
        f"{place} may be behind the cluster, and objects that retention removed since would look "
        "lost; read the running quorum instead: --bootstrap-controller HOST:PORT"
    )


def reading_errors() -> tuple[type[Exception], ...]:
    """Return the exception classes that opening and reading logs may raise.

    Each message is one sentence for users.
    """
    from spark_jobs.readers.log_files import LostRangeError
    from spark_jobs.readers.logs import LogsError

    return (LogsError, LostRangeError, RecordError, OSError)


def stop_reading(error: Exception) -> NoReturn:
    """Exit because logs cannot be read; lost offsets have the exit code of data loss.

    All other errors exit with the code of the environment.
    """
    from spark_jobs.readers.log_files import LostRangeError

    stop(reason(error), DATA_LOSS if isinstance(error, LostRangeError) else ENVIRONMENT)
