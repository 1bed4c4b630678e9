"""Where a job reads the logs from: the same options for every command of `esker spark`.

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

One of three places, or a directory with a quorum beside it that is asked how much of it is
committed; a directory alone is believed as far as its node has written that down.

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
    typer.Option("--log-dir", metavar="DIR", help="A node's log directory; any node's will do."),
]
FromQuorum = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-controller",
        metavar="HOST:PORT[,...]",
        help="Controllers to ask what is committed; any of them will do.",
    ),
]
Archive = Annotated[
    str | None,
    typer.Option(
        "--archive", metavar="DIR|s3://BUCKET/PREFIX", help="An archive of the logs, instead."
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
    """What these options name.

    Args:    endpoint, region: of an archive's bucket (`esker.commands.spark.store`).
    Raises:  typer.BadParameter unless it is one place.
    """
    from spark_jobs.readers.inputs import Inputs
    from spark_jobs.readers.object_store import StoreOptions

    if archive is not None and (log_dir is not None or bootstrap_controller is not None):
        raise typer.BadParameter("--archive stands alone: it holds only what is committed")
    if archive is None and log_dir is None and bootstrap_controller is None:
        raise typer.BadParameter(
            "say where the logs are: --log-dir DIR, --bootstrap-controller HOST:PORT, or --archive"
        )
    controllers: tuple[tuple[str, int], ...] = ()
    if bootstrap_controller is not None:
        found = endpoints(bootstrap_controller, "--bootstrap-controller")
        controllers = tuple((one.host, one.port) for one in found)
    return Inputs(log_dir, controllers, archive, timeout_ms, StoreOptions(endpoint, region))


def open_logs(inputs: Inputs) -> Logs:
    """The logs to read. Raises as `reading_errors` says."""
    from spark_jobs.readers.inputs import open_logs

    return open_logs(inputs)


def may_be_behind(place: Path | str | None) -> str:
    """What to think of objects that are missing by a copy of the logs: it may be the copy."""
    return (
        f"{place} may be behind the cluster, and what retention removed since would look lost; "
        "where the quorum runs, ask it: --bootstrap-controller HOST:PORT"
    )


def reading_errors() -> tuple[type[Exception], ...]:
    """What opening and reading logs may raise: each is one sentence for whoever runs the job."""
    from spark_jobs.readers.log_files import LostRangeError
    from spark_jobs.readers.logs import LogsError

    return (LogsError, LostRangeError, RecordError, OSError)


def stop_reading(error: Exception) -> NoReturn:
    """End for one of `reading_errors`: offsets that are gone are data, the rest is a place."""
    from spark_jobs.readers.log_files import LostRangeError

    stop(reason(error), DATA_LOSS if isinstance(error, LostRangeError) else ENVIRONMENT)
