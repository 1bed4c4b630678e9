"""Explains Spark's failures in one sentence.

Spark answers a typing error with two hundred lines of Scala. The usual failures are a short list
(no
Java, no memory, a taken port, another Python on the workers), which is kept here with remedies; the
details stay in the log file. An error of our own that was raised in a worker comes
back as text inside a text: it is taken out again, by its name.

Source: the messages of Spark 4.3 and of Java 17 to 25.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spark_jobs.session.java import HINT as JAVA_HINT


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure in one sentence without a full stop, and a remedy, possibly empty."""

    sentence: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.sentence}; {self.hint}" if self.hint else self.sentence


class SessionError(Exception):
    """No session could be started. The text is for the user; details are in `log_file`."""

    def __init__(
        self, failure: Failure, *, log_file: Path | None = None, usage: bool = False
    ) -> None:
        super().__init__(str(failure))
        self.failure = failure
        self.log_file = log_file
        self.usage = usage  # the request itself is invalid


KNOWN: Final = (  # the first that is found anywhere in what was said; \1 of it fills {0}
    (
        r"has been compiled by a more recent version of the Java Runtime",
        Failure("this Java is too old for Spark", JAVA_HINT),
    ),
    (
        r"Could not reserve enough space|insufficient memory for the Java Runtime"
        r"|Cannot allocate memory|Not enough space",
        Failure("the machine has less memory than the JVM requests", "try --memory 512m"),
    ),
    (
        r"(?:System|Executor) memory \S+ must be at least|Invalid maximum heap size"
        r"|Too small maximum heap",
        Failure("Spark does not start with so little memory", "try --memory 1g"),
    ),
    (
        r"Java heap space|GC overhead limit exceeded",
        Failure("the JVM ran out of memory", "give it more, for example --memory 2g"),
    ),
    (
        r"is bigger than spark\.driver\.maxResultSize",
        Failure("a result was too big for the driver", "report it: no job should collect so much"),
    ),
    (
        r"No space left on device",
        Failure("a disk that Spark writes to is full", "set TMPDIR to one with space"),
    ),
    (
        r"Cannot assign requested address",
        Failure(
            "Spark cannot listen on this machine's address",
            "name one that the workers reach: SPARK_LOCAL_IP=ADDRESS",
        ),
    ),
    (
        r"Address already in use",
        Failure("a port that Spark needs is in use", "free it, or leave spark.*.port unset"),
    ),
    (
        r"Could not parse Master URL: '([^']*)'",
        Failure("{0} is not the address of a Spark cluster", "write --master spark://HOST:7077"),
    ),
    (
        r"All masters are unresponsive|Master removed our application",
        Failure(
            "the Spark cluster has dropped this application", "the log of its master has the reason"
        ),
    ),
    (
        r"PYTHON_VERSION_MISMATCH.*?Python in worker has different version:? (\S+)"
        r"|Python in worker has different version:? (\S+)",
        Failure(
            "the workers run another Python, {0}",
            "set PYSPARK_PYTHON to the path, on the workers, of the version that runs here",
        ),
    ),
    (
        r"Cannot run program \"([^\"]+)\"",
        Failure(
            "the workers have no {0}", "set PYSPARK_PYTHON to the path of Python on the workers"
        ),
    ),
    (
        r"No module named '((?:pyarrow|numpy|pandas|fastavro|msgspec|msgpack|crc32c|cramjam|boto3)"
        r"[\w.]*)'",
        Failure("the workers' Python lacks {0}", "on each: pip install 'esker[spark]'"),
    ),
    (
        r"Py4JNetworkError|Answer from Java side is empty",
        Failure("Spark's JVM has died", "if the machine was out of memory, try a smaller --memory"),
    ),
    (
        r"No module named 'pyspark",
        Failure("PySpark is not installed", "pip install 'esker[spark]'"),
    ),
)

_TRACEBACK: Final = "Traceback (most recent call last):"
_RAISED: Final = re.compile(r"^([A-Za-z_][\w.]*): (.+)$", re.MULTILINE)
_SENTENCE_CHARS: Final = 500


def find_failure(output: str) -> Failure | None:
    """Return the known failure that a text describes, or None for an unknown failure."""
    for pattern, failure in KNOWN:
        found = re.search(pattern, output, re.DOTALL)
        if found:
            detail = next((group for group in found.groups() if group), "")
            return Failure(failure.sentence.format(detail.rstrip(".,")), failure.hint)
    return None


def raised_in_worker(error: BaseException) -> tuple[str, str] | None:
    """Return name and message of an error that our Python code raised in a Spark worker.

    >>> raised_in_worker(Exception("Job aborted\\nTraceback (most recent call last):\\n"
    ...                            "  File x\\nspark_jobs.logs.LogsError: no such log: a-0"))
    ('LogsError', 'no such log: a-0')
    """
    _, found, last = _text(error).rpartition(_TRACEBACK)
    raised = _RAISED.search(last) if found else None
    return (raised[1].rpartition(".")[2], raised[2].strip()) if raised else None


def _text(error: BaseException) -> str:
    """Return an error's text, even if PySpark can no longer get the text from the JVM."""
    try:
        text = str(error)
    except Exception:  # whatever the connection died of
        return "Py4JNetworkError"
    because = error.__cause__ or error.__context__
    return f"{text}\n{type(because).__name__}" if because is not None else text


def explain(error: BaseException, output: str = "") -> Failure:
    """Explain a Spark error in one sentence, by its text and the output of the JVM."""
    text = _text(error)
    recognised = find_failure(f"{text}\n{output}")
    if recognised:
        return recognised
    inside = raised_in_worker(error)
    if inside:
        return Failure(": ".join(inside))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    java = next(
        (line for line in lines if re.match(r"(?:: )?[\w.$]+(?:Exception|Error):", line)), ""
    )
    first = java or (lines[0] if lines else type(error).__name__)
    return Failure(f"Spark failed: {first.removeprefix(': ')[:_SENTENCE_CHARS]}")
