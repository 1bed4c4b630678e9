"""The options of `esker_log`: what is read, from where, and how much of it at once.

Source: docs/design/pipeline.md#one-input; PySpark's Python Data Source API (options are text, their
names in any case).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from spark_jobs.readers.inputs import Inputs
from spark_jobs.readers.log_files import SPLIT_BYTES
from spark_jobs.readers.logs import Logs, LogsError
from spark_jobs.readers.object_store import StoreOptions
from spark_jobs.readers.spans import TASK_BYTES
from spark_jobs.source.option_error import OptionError, check_security
from spark_jobs.tables.schemas import RECORD
from spark_jobs.tables.views import (
    CONSUMER_OFFSETS,
    TRANSACTION_STATE,
    can_hold,
    resolve_table,
    schema_named,
)

LAST: Final = (1 << 63) - 1
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
CHECKPOINT: Final = "checkpoint"

OPTIONS: Final[Mapping[str, str]] = {
    "path": "a node's log directory; the same as logDir",
    "logDir": "a node's log directory",
    "bootstrapController": "HOST:PORT[,...]: controllers of the quorum to read from",
    "archive": "an archive to read from: DIR or s3://BUCKET/PREFIX",
    "endpoint": "endpoint of the archive's S3 server, if it is not Amazon's: http[s]://HOST:PORT",
    "region": "region of the archive's bucket",
    "timeoutMs": "ms to wait for an answer of the quorum; default 10000",
    "log": "logs to read, comma separated; default: those that hold the table's records",
    "table": "the table or view to read; default `record`",
    "columns": "columns to read, comma separated; default: all of the table",
    "startOffset": "the first offset (inclusive); default: the log's beginning",
    "endOffset": "the end offset (exclusive); default: the end of the committed part",
    "splitBytes": "approximate bytes of log that one task reads; default 32 MiB",
    "pushFilters": "accept Spark's filters (default true); false where the session forbids it",
    "failOnDataLoss": "fail if offsets were deleted (default true); false: warn and continue",
    "onUnknownVersion": "records of an unknown version: fail (default) or skip",
    "startingOffsets": "start of a stream: earliest (default), latest, checkpoint or an offset",
    "maxOffsetsPerTrigger": "log offsets in one batch of a stream; default: all available",
}

KAFKA: Final = "kafka."
"""Begins the options that are Kafka's client properties of TLS and SASL, for controllers."""


OTHER_LOGS: Final = (f"{CONSUMER_OFFSETS}0", f"{TRANSACTION_STATE}0")
"""Logs that no job reads unless a table or an option names them."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a read, parsed."""

    inputs: Inputs
    table: str
    columns: tuple[str, ...]
    logs: tuple[str, ...] = ()  # none: those that hold the table
    start_offset: int | None = None
    end_offset: int | None = None
    split_bytes: int = SPLIT_BYTES
    task_bytes: int = TASK_BYTES
    push_filters: bool = True
    fail_on_data_loss: bool = True
    skip_unknown: bool = False
    starting: str | int = EARLIEST
    max_offsets: int | None = None
    # what filters have narrowed it to
    lowest: int = 0  # offsets of rows: [lowest, highest]
    highest: int = LAST
    types: frozenset[int] | None = None  # of records; None: all
    only_logs: frozenset[str] | None = field(default=None)

    def chosen(self, logs: Logs) -> list[str]:
        """Return the names of the logs that the options choose.

        Raises:  OptionError.
        """
        there = logs.names()
        names = list(self.logs) or [name for name in there if can_hold(self.table, name)]
        others = (name for name in OTHER_LOGS if can_hold(self.table, name))
        names = names or [name for name in others if _has(logs, name)]
        if not names:
            raise OptionError(f"log: no log here holds {self.table}; there are: {', '.join(there)}")
        if len(names) > 1 and (self.start_offset is not None or self.end_offset is not None):
            raise OptionError("log: name one log with startOffset or endOffset")
        return [name for name in names if self.only_logs is None or name in self.only_logs]


def _has(logs: Logs, name: str) -> bool:
    """Return whether the input has a log that `Logs.names` leaves out."""
    try:
        logs.log(name)
    except LogsError:
        return False
    return True


def parse_options(options: Mapping[str, str]) -> Options:
    """Parse the options of a read from text.

    Raises:  OptionError; TableError for an unknown table.
    """
    known = {name.lower(): name for name in OPTIONS}
    given, security = {}, {}
    for name, text in options.items():
        if name.lower().startswith(KAFKA):
            security[name.lower().removeprefix(KAFKA)] = text
            continue
        if name.lower() not in known:
            raise OptionError(f"{name}: no such option; there are: {', '.join(OPTIONS)}")
        given[known[name.lower()]] = text
    table = resolve_table(given.get("table", RECORD))
    names = ["log", *schema_named(table).names]
    columns = _words(given.get("columns", ""))
    for column in columns:
        if column not in names:
            raise OptionError(f"columns: {table} has no {column}; it has: {', '.join(names)}")
    return Options(
        inputs=_inputs(given, security),
        table=table,
        columns=columns or tuple(names),
        logs=_words(given.get("log", "")),
        start_offset=_number(given, "startOffset"),
        end_offset=_number(given, "endOffset"),
        split_bytes=_number(given, "splitBytes") or SPLIT_BYTES,
        task_bytes=min(TASK_BYTES, _number(given, "splitBytes") or TASK_BYTES),
        push_filters=_choice(given, "pushFilters", ("true", "false")) == "true",
        fail_on_data_loss=_choice(given, "failOnDataLoss", ("true", "false")) == "true",
        skip_unknown=_choice(given, "onUnknownVersion", ("fail", "skip")) == "skip",
        starting=_parse_starting(given),
        max_offsets=_number(given, "maxOffsetsPerTrigger") or None,
    )


def _inputs(given: Mapping[str, str], security: Mapping[str, str]) -> Inputs:
    """Parse the options that name the source of the logs.

    `open_logs` checks that they go together.
    """
    if "path" in given and "logDir" in given:
        raise OptionError("path: give path or logDir, not both")
    log_dir = given.get("logDir", given.get("path"))
    archive = given.get("archive")
    controllers = tuple(_address(text) for text in _words(given.get("bootstrapController", "")))
    if log_dir is None and archive is None and not controllers:
        raise OptionError("name the source of the logs: logDir, bootstrapController or archive")
    if security and not controllers:
        raise OptionError(f"{KAFKA}{next(iter(security))}: only controllers are asked with it")
    check_security(security)
    return Inputs(
        Path(log_dir) if log_dir is not None else None,
        controllers,
        archive,
        _number(given, "timeoutMs") or 10_000,
        StoreOptions(given.get("endpoint"), given.get("region")),
        security or None,
    )


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port[:6]) < 1 << 16:
        raise OptionError(f"bootstrapController: {text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def _words(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _parse_starting(given: Mapping[str, str]) -> str | int:
    text = given.get("startingOffsets", EARLIEST)
    if text in (EARLIEST, LATEST, CHECKPOINT):
        return text
    number = _number(given, "startingOffsets")
    assert number is not None, "it is given"
    return number


def _choice(given: Mapping[str, str], name: str, words: tuple[str, str]) -> str:
    """Return an option's value, which must be one of two words; the first word is the default."""
    text = given.get(name, words[0]).lower()
    if text not in words:
        raise OptionError(f"{name}: {text!r} is neither {words[0]} nor {words[1]}")
    return text


def _number(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise OptionError(f"{name}: {text!r} is not a number >= 0")
    return value
