"""The process that rewrites objects for a broker, so that the broker's loop stays free.

The broker sends a task by a pipe to standard input. The child asks for each object id and hands
over each uploaded object by another pipe, standard output; the broker answers. Messages are
pickled, behind their length: both ends are one program.

The child holds nothing that matters. If it dies, its task fails, the objects that it uploaded and
did not hand over are orphans of the lease, and the next task starts another child. If the broker
dies, standard input ends, and the child with it.

Source: docs/design/compaction.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import pickle
import struct
import sys
from collections.abc import Mapping
from typing import Any, BinaryIO, Final

from diskless.compaction.tasks import Report, RewriterSettings, RewrittenObject
from diskless.compaction.worker import (
    Callbacks,
    Task,
    TaskFailedError,
    Throttle,
    ThrottledStore,
    run_task,
)
from diskless.stores import StorageError
from diskless.stores.opening import open_store
from raft.net.logs import begin_logging

log = logging.getLogger("diskless.compaction.child")

_LENGTH: Final = struct.Struct(">I")
NEXT_ID: Final = "next_id"
WRITTEN: Final = "written"
DONE: Final = "done"
FAILED: Final = "failed"
NICENESS: Final = 10  # the broker's own work goes first
STOP_S: Final = 5.0
MMAP_THRESHOLD_BYTES: Final = 128 * 1024
"""Size from which the C library gives freed memory back to the system at once.

Without a fixed size it raises its own, and the map's memory stays while the objects are written.
"""

GARBAGE_THRESHOLD: Final = 200_000  # objects made and not freed, between two collections


class ChildWorker:
    """Runs tasks in a child process, which is started when it is needed."""

    def __init__(self, values: Mapping[str, Any], *, max_bytes_per_second: int) -> None:
        """Prepare to start a child process that merges and compacts for this broker.

        Args:    values: the broker's parsed settings, for the child to open the store with.
        """
        self.started = 0  # children
        self._first = dict(values), max_bytes_per_second
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """Return the id of the running child process, or None without a child."""
        return None if self._process is None else self._process.pid

    async def run(self, task: Task, settings: RewriterSettings, callbacks: Callbacks) -> Report:
        """Run a merge or compaction task in the child process; first start any missing child.

        Raises:  TaskFailedError, and the errors of the callbacks.
        """
        try:
            process = await self._start()
            assert process.stdin is not None, "a child without a pipe"
            assert process.stdout is not None, "a child without a pipe"
            _send(process.stdin, (task, settings))
            while True:
                kind, value = await _receive(process.stdout)
                if kind == DONE:
                    return value  # type: ignore[no-any-return]
                if kind == FAILED:
                    raise TaskFailedError(value)
                answer: object = await (
                    callbacks.next_id() if kind == NEXT_ID else callbacks.replace(value)
                )
                _send(process.stdin, answer)
        except TaskFailedError:
            raise
        except (asyncio.IncompleteReadError, OSError) as error:
            await self.close()
            raise TaskFailedError(f"the rewriting process ended: {error}") from error
        except BaseException:  # it waits for an answer that does not come
            await self.close()
            raise

    async def _start(self) -> asyncio.subprocess.Process:
        process = self._process
        if process is None or process.returncode is not None:
            process = self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "diskless.compaction.child",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is the broker's, which ends the child
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                    "MALLOC_MMAP_THRESHOLD_": str(MMAP_THRESHOLD_BYTES),
                },
            )
            self.started += 1
            assert process.stdin is not None, "a child without a pipe"
            _send(process.stdin, self._first)
            log.info("action=start pid=%d", process.pid)
        return process

    async def close(self) -> None:
        """Kill the child process, if there is such a process."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), STOP_S)


def _send(pipe: asyncio.StreamWriter, value: object) -> None:
    data = pickle.dumps(value)
    pipe.write(_LENGTH.pack(len(data)) + data)


async def _receive(pipe: asyncio.StreamReader) -> Any:
    """Read one pickled message of the child process from a pipe.

    Raises:  IncompleteReadError at the pipe's end.
    """
    (size,) = _LENGTH.unpack(await pipe.readexactly(_LENGTH.size))
    return pickle.loads(await pipe.readexactly(size))


# --- in the child -------------------------------------------------------------------------------


class _Parent:
    """The broker's end of the pipes."""

    def __init__(self, source: BinaryIO, target: BinaryIO) -> None:
        self._source = source
        self._target = target

    def read(self) -> Any:
        """Read one message from the broker; end this process if the broker has ended."""
        head = self._source.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            os._exit(0)
        (size,) = _LENGTH.unpack(head)
        return pickle.loads(self._source.read(size))

    async def ask(self, kind: str, value: object = None) -> Any:
        """Send a request to the broker and return the broker's answer."""
        self.tell(kind, value)
        return await asyncio.to_thread(self.read)

    def tell(self, kind: str, value: object) -> None:
        """Send a message; end the process if the broker is gone."""
        data = pickle.dumps((kind, value))
        try:
            self._target.write(_LENGTH.pack(len(data)) + data)
            self._target.flush()
        except BrokenPipeError:
            os._exit(0)

    async def next_id(self) -> int:
        """Request the id of the next object from the broker."""
        return int(await self.ask(NEXT_ID))

    async def replace(self, written: RewrittenObject) -> bool:
        """Report an uploaded object to the broker; return whether to continue the task."""
        return bool(await self.ask(WRITTEN, written))


async def _serve(parent: _Parent) -> None:
    values, max_bytes_per_second = await asyncio.to_thread(parent.read)
    begin_logging(values["esker.log.format"], "WARNING")
    store = ThrottledStore(open_store(values), Throttle(max_bytes_per_second))
    callbacks = Callbacks(parent.next_id, parent.replace)
    while True:
        task, settings = await asyncio.to_thread(parent.read)
        try:
            report = await run_task(store, task, settings, callbacks)
        except StorageError as error:
            parent.tell(FAILED, str(error))
        else:
            parent.tell(DONE, report)


def collect_seldom() -> None:
    """Have this process look for garbage in cycles seldom, because batches have none.

    Why: at Python's default the collector walks through the batches of a window again and again,
    a quarter of the time of a compaction of small batches.
    """
    gc.freeze()
    gc.set_threshold(GARBAGE_THRESHOLD)


def main() -> None:
    """Merge and compact for the broker that writes to standard input, until the input ends."""
    target = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed by mistake must not stand between messages
    os.nice(NICENESS)
    collect_seldom()
    asyncio.run(_serve(_Parent(os.fdopen(0, "rb"), target)))


if __name__ == "__main__":
    main()
