"""A second Python process that works on pieces, too.

    with Helper(task) as helper:
        found = helper.ask(piece)

Threads of one Python share one core for all that is not NumPy. The helper is another Python that is
given the task once, then one piece at a time, through its standard input, and answers through its
output. It ends when its input does, so it does not outlive a killed parent.

The trap is how it treats an error: it reports only that there is no result. A helper that does not
start, is killed, or cannot read its input counts the same. The caller then works on that piece
itself, and meets the error where it is handled.

Source: ours. `multiprocessing` would run the caller's main module again in each process it starts;
a session of a notebook, or a script without a guard, does not survive that.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Final, Self

_PROGRAM: Final = """\
import pickle, sys
sys.path[:] = pickle.load(sys.stdin.buffer)
from spark_jobs.readers.helper_process import serve
serve()
"""


class HelperError(Exception):
    """The helper process did not answer."""


class Helper:
    """A process that runs a task, from `__enter__` to `__exit__`; used by one thread at a time."""

    def __init__(self, task: Callable[[Any], Any]) -> None:
        """Pickle the task for a helper process, which `__enter__` starts.

        Raises:  what `pickle` raises for a task that cannot be pickled.
        """
        self._task = pickle.dumps(task)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is its parent's
            )
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):  # what it was not sent before it was killed
                pipe.close()
        process.wait()

    def kill(self) -> None:
        """Kill the helper process; a pending request to it raises HelperError."""
        if self._process is not None:
            self._process.kill()

    def ask(self, work: Any) -> Any:
        """Have the helper process run its task on an item, and return the result.

        Raises:  HelperError.
        """
        process = self._process
        if process is None:
            raise HelperError
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if self._task:
                process.stdin.write(pickle.dumps(sys.path) + self._task)
                self._task = b""
            process.stdin.write(pickle.dumps(work))
            process.stdin.flush()
            done, answer = pickle.load(process.stdout)
        except Exception as error:  # of the pipes, or of whatever pickles
            process.kill()
            raise HelperError from error
        if not done:
            raise HelperError
        return answer


def serve() -> None:
    """Serve requests in the helper process until its input ends."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a task prints is no answer
    task = pickle.load(requests)
    while True:
        try:
            work = pickle.load(requests)
        except EOFError:
            return
        try:
            answer = pickle.dumps((True, task(work)), pickle.HIGHEST_PROTOCOL)
        except Exception:  # the caller meets it again
            answer = pickle.dumps((False, None))
        answers.write(answer)
        answers.flush()
