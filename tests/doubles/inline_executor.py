"""An executor that calls at once, in the caller's thread: for loops with a virtual clock."""

from __future__ import annotations

from concurrent.futures import Executor, Future


class InlineExecutor(Executor):
    """Runs each call inside of `submit`."""

    def submit(self, fn, /, *args, **kwargs) -> Future:
        future: Future = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future
