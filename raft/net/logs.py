"""Writes a process's log to standard error, as lines for people or as JSON for programs.

A line is one change of state, mostly in words of `key=value`. As JSON it is an object with `time`
(ISO 8601, UTC, ms), `level`, `logger`, `message`, and `exception` if there is a traceback.

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

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def begin_logging(shape: str, level: str) -> None:
    """Write what this process logs to standard error from now on.

    Args:  shape: one of FORMATS. level: the least of LEVELS that is written.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter()
        if shape == JSON
        else logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    )
    logging.basicConfig(handlers=[handler], level=level)
