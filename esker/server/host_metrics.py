"""The metrics and the health of several broker processes, gathered into one page each.

    merged = merge_metrics({101: text_of_101, 102: text_of_102})

Every sample gets the label `process` with the broker's id. The text is merged line by line: parsing
ten thousand partitions' samples would cost the supervisor more than the brokers pay to write them.

Source: docs/design/processes.md#states-of-a-child; Prometheus, text format 0.0.4.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from raft.net.http import HttpServer, get, json_response, response

GATHER_S: Final = 1.0  # within which a process answers, or is left out
HOST: Final = "127.0.0.1"
PATHS: Final = b"try /metrics, /health, /health/ready or /health/live\n"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildStatus:
    """What the supervisor knows of one broker process."""

    broker_id: int
    state: str  # starting, ready, waiting, stopping, stopped
    restarts: int
    is_crash_loop: bool
    metrics_port: int | None  # None: not told yet, or no process


class HostMetrics:
    """Serves `/metrics` and `/health` of all broker processes of a supervisor."""

    def __init__(self, statuses: Callable[[], list[ChildStatus]]) -> None:
        self._statuses = statuses
        self._server = HttpServer(self._answer)

    async def start(self, host: str, port: int) -> None:
        """Listen for scrapes. Raises OSError."""
        await self._server.start(host, port)

    async def close(self) -> None:
        """Stop listening for scrapes."""
        await self._server.close()

    async def _answer(self, path: bytes) -> bytes:
        match path:
            case b"/metrics":
                return await self._metrics()
            case b"/health" | b"/health/ready":
                return await self._health(path.decode())
            case b"/health/live":
                return json_response({"live": True}, ok=True)
            case _:
                return response("404 Not Found", "text/plain", PATHS)

    async def _metrics(self) -> bytes:
        statuses = self._statuses()
        found = await _gather(statuses, "/metrics", _text)
        own = describe_processes(statuses, found)
        text = own + merge_metrics(found)
        return response("200 OK", "text/plain; version=0.0.4", text.encode())

    async def _health(self, path: str) -> bytes:
        """Answer 200 while any process is ready; `/health` also needs all of them to be."""
        statuses = self._statuses()
        found = await _gather(statuses, path, _json)
        shown = {}
        for status in statuses:
            own: dict[str, Any] = {"ready": False, **found.get(status.broker_id, {})}
            if status.broker_id not in found:
                own["reasons"] = [f"broker {status.broker_id} does not answer"]
            own |= {"state": status.state, "restarts": status.restarts}
            if status.is_crash_loop:
                own["crash_loop"] = True
            shown[str(status.broker_id)] = own
        ready = [one["ready"] is True for one in shown.values()]
        is_whole = all(ready) and not any(status.is_crash_loop for status in statuses)
        is_ok = is_whole if path == "/health" else any(ready)
        return json_response({"ready": any(ready), "processes": shown}, ok=is_ok)


def describe_processes(statuses: list[ChildStatus], answered: Mapping[int, object]) -> str:
    """Return the supervisor's own metrics as text."""
    rows = {
        "esker_process_up": (
            "gauge",
            "1 if this broker process answered the scrape of its metrics within a second",
            [int(status.broker_id in answered) for status in statuses],
        ),
        "esker_process_restarts_total": (
            "counter",
            "Starts of this broker process after its first, since the supervisor started",
            [status.restarts for status in statuses],
        ),
        "esker_process_crash_loop": (
            "gauge",
            "1 if this broker process died three times in a row without being ready for 10 s",
            [int(status.is_crash_loop) for status in statuses],
        ),
    }
    lines = []
    for name, (kind, about, values) in rows.items():
        lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
        for status, value in zip(statuses, values, strict=True):
            lines.append(f'{name}{{process="{status.broker_id}"}} {value}')
    return "\n".join(lines) + "\n"


def merge_metrics(texts: Mapping[int, str]) -> str:
    """Merge the metrics of several processes; each sample gets the label `process`.

    >>> print(merge_metrics({1: "# TYPE a gauge\\na 2\\n", 2: '# TYPE a gauge\\na{b="c"} 3\\n'}))
    # TYPE a gauge
    a{process="1"} 2
    a{process="2",b="c"} 3
    <BLANKLINE>
    """
    families: dict[str, tuple[dict[str, str], list[str]]] = {}  # by name: comments and samples
    for process, text in texts.items():
        samples: list[str] = []
        for line in text.splitlines():
            if line.startswith("#"):
                _, kind, name, _ = line.split(" ", 3)
                comments, samples = families.setdefault(name, ({}, []))
                comments.setdefault(kind, line)  # HELP, TYPE
            else:
                samples.append(_with_process(line, process))
    lines = [line for found in families.values() for line in (*found[0].values(), *found[1])]
    return "".join(f"{line}\n" for line in lines)


def _with_process(sample: str, process: int) -> str:
    brace, space = sample.find("{"), sample.find(" ")
    if 0 <= brace < space:
        return f'{sample[:brace]}{{process="{process}",{sample[brace + 1 :]}'
    return f'{sample[:space]}{{process="{process}"}}{sample[space:]}'


async def _gather(
    statuses: list[ChildStatus], path: str, read: Callable[[int, bytes], T]
) -> dict[int, T]:
    """Ask all processes at once; return the answers that came in time, by broker id."""

    async def ask(port: int) -> T:
        async with asyncio.timeout(GATHER_S):
            return read(*await get(HOST, port, path))

    asked: dict[int, Coroutine[Any, Any, T]] = {
        status.broker_id: ask(status.metrics_port)
        for status in statuses
        if status.metrics_port is not None
    }
    answers = await asyncio.gather(*asked.values(), return_exceptions=True)
    found: dict[int, T] = {}
    for broker_id, answer in zip(asked, answers, strict=True):
        if isinstance(answer, OSError | ValueError):  # TimeoutError is an OSError
            continue
        if isinstance(answer, BaseException):
            raise answer
        found[broker_id] = answer
    return found


def _text(status: int, body: bytes) -> str:
    if status != 200:
        raise ValueError(f"status {status}")
    return body.decode()


def _json(_status: int, body: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(body)
    return found
