"""Writes a process's log to standard error, as lines for people or as JSON for programs.

A line is one change of state, mostly in words of `key=value`. As JSON it is an object with `time`
(ISO 8601, UTC, ms), `level`, `logger`, `message`, and `exception` if there is a traceback. One
of several broker processes adds its id: `process=102` before the words, or the field `process`.

Source: docs/operations.md#logs.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

TEXT: Final = "text"
JSON: Final = "json"
FORMATS: Final = (TEXT, JSON)
LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")


class JsonFormatter(logging.Formatter):
    """Formats a record of the log as one line of JSON."""

    def __init__(self, process: int | None = None) -> None:
        """Create a formatter.

        Args:  process: the id of this broker process, if it is one of several.
        """
        super().__init__()
        self._own = {} if process is None else {"process": process}

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **self._own,
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def begin_logging(shape: str, level: str, process: int | None = None) -> None:
    """Write what this process logs to standard error from now on.

    Args:  shape: one of FORMATS. level: the least of LEVELS that is written.
           process: the id of this broker process, if it is one of several.
    """
    own = "" if process is None else f"process={process} "
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter(process)
        if shape == JSON
        else logging.Formatter(f"%(asctime)s %(levelname)s {own}%(message)s")
    )
    logging.basicConfig(handlers=[handler], level=level)
