"""Starts nodes: as forks of a process that has imported Esker already.

A node's modules take half a second of processor time to import, and the tests start several hundred
nodes. So a test process keeps one *template*, a Python process with one thread that has imported
what nodes import and then only waits. It also compiles the codecs that the first nodes compiled, a
quarter of the work of their starts. A node is a fork of it that becomes `python -m MODULE`: it
has its own arguments, environment, working directory and standard files, as if it had been started
on a command line. What is about command lines is tested with real ones.

The trap: forks of one template share the seed of Python's string hashes. Each test process draws
its own.

Benchmarks start nodes in the ordinary way, and so does a system without pidfd_open (Linux 5.3).

Source: pidfd_open(2); zygote processes as of Android.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final, TypeAlias

from records import codec
from records.schema import Message

ROOT: Final = Path(__file__).parents[1]
MAX_REQUEST_BYTES: Final = 100_000
RUN_TIMEOUT_S: Final = 280.0

forks_allowed = False
"""Whether nodes are forks outside of pytest, too."""


class Forked:
    """A process that was forked from the template, with the methods of `subprocess.Popen`."""

    def __init__(self, template: Template, pid: int, args: list[str]) -> None:
        self.args = args
        self.pid = pid
        self.returncode: int | None = None
        self._template = template
        self._exit = os.pidfd_open(pid)  # readable once the process has ended
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """The exit code, or None while the process runs."""
        with self._lock:
            if self.returncode is None and self._has_ended(timeout_s=0):
                self.returncode = self._template.exit_code(self.pid)
                os.close(self._exit)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises subprocess.TimeoutExpired."""
        while (code := self.poll()) is None:
            if not self._has_ended(timeout):
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def _has_ended(self, timeout_s: float | None) -> bool:
        poll = select.poll()
        poll.register(self._exit, select.POLLIN)
        return bool(poll.poll(None if timeout_s is None else timeout_s * 1_000))

    def send_signal(self, number: int) -> None:
        """Nothing happens to a process that has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)  # it is not reaped before `poll` says so

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


Process: TypeAlias = "subprocess.Popen[bytes] | Forked"


class Template:
    """The process that nodes are forks of; it ends with the process that made it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.processes", str(theirs.fileno())],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=ROOT,
                pass_fds=[theirs.fileno()],
            )  # fmt: skip
        self._channel = ours
        self._lock = threading.Lock()
        atexit.register(self.close)

    def close(self) -> None:
        """End the template; its forks live on."""
        self._channel.close()
        self._process.wait()

    def fork(self, module: str, args: list[str], files: Sequence[int], **more: Any) -> Forked:
        """Fork `python -m MODULE ARGS` with these standard files: input, output, error."""
        pid = self._ask({"module": module, "args": args, **more}, *files)
        return Forked(self, pid, [sys.executable, "-m", module, *args])

    def exit_code(self, pid: int) -> int:
        """Of a process that has ended; it is gone then. Negative: the signal that killed it."""
        return self._ask({"reap": pid})

    def _ask(self, request: Mapping[str, Any], *descriptors: int) -> int:
        with self._lock:
            socket.send_fds(self._channel, [json.dumps(request).encode()], descriptors)
            answer = self._channel.recv(100)
        assert answer, f"the template of nodes ended with {self._process.poll()}"
        return int(answer)


@functools.cache
def _template(_pid: int) -> Template:
    return Template()


def start(
    module: str,
    *args: str,
    output: IO[bytes],
    cwd: Path = ROOT,
    environment: Mapping[str, str] | None = None,
    errors: IO[bytes] | None = None,
    given: IO[bytes] | None = None,
    fresh: bool = False,
) -> Process:
    """Begin `python -m MODULE ARGS`, with all of its output in an open file.

    Args:  environment: what is added to this process's own. errors: another file for its standard
           error. given: its standard input, empty by default. fresh: import everything anew, since
           the program changes modules before others import names from them.
    """
    variables = {**os.environ, **(environment or {})}
    with Path(os.devnull).open("rb") as nothing:
        files = [given or nothing, output, errors or output]
        is_forked = forks_allowed or "PYTEST_VERSION" in os.environ
        if is_forked and hasattr(os, "pidfd_open") and not fresh:
            descriptors = [file.fileno() for file in files]
            template = _template(os.getpid())
            return template.fork(module, list(args), descriptors, cwd=str(cwd), env=variables)
        return subprocess.Popen(
            [sys.executable, "-m", module, *args],
            stdin=files[0], stdout=files[1], stderr=files[2], cwd=cwd, env=variables,
        )  # fmt: skip


def run(
    module: str, *args: str, text: str = "", timeout_s: float = RUN_TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """Run `python -m MODULE ARGS` to its end, and return its output and exit code.

    Args:    text: its standard input.
    Raises:  subprocess.TimeoutExpired, after the process was killed.
    """
    with TemporaryFile() as given, TemporaryFile() as output, TemporaryFile() as errors:
        given.write(text.encode())
        given.seek(0)
        process = start(module, *args, output=output, errors=errors, given=given)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        output.seek(0)
        errors.seek(0)
        printed = (output.read().decode(), errors.read().decode())
        return subprocess.CompletedProcess(process.args, code, *printed)


def _next_fork(channel: socket.socket, codecs: _Codecs) -> tuple[dict[str, Any], list[int]]:
    """Serve the test process. Returns only in forks, with what each is to become."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(channel, MAX_REQUEST_BYTES, 3)
        if not data:  # the test process has ended
            os._exit(0)
        request = json.loads(data)
        if "reap" in request:
            _, status = os.waitpid(request["reap"], 0)
            channel.send(b"%d" % os.waitstatus_to_exitcode(status))
            continue
        codecs.compile()
        pid = os.fork()
        if not pid:
            return request, descriptors
        for descriptor in descriptors:
            os.close(descriptor)
        channel.send(b"%d" % pid)


class _Codecs:
    """Codecs that forks compiled, for the template to compile once before its later forks."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        for end in (self._ours, self._theirs):
            end.setblocking(False)

    def compile(self) -> None:
        """In the template: compile what forks have reported since the last time."""
        with contextlib.suppress(BlockingIOError):
            while True:
                maker, module, name, version = json.loads(self._ours.recv(MAX_REQUEST_BYTES))
                cls = getattr(sys.modules.get(module), name, None)
                known = cls and (cls._encoders if maker == "_encoder" else cls._decoders)
                if known is not None and version not in known:
                    getattr(codec, maker)(cls, version)

    def report(self) -> None:
        """In a fork: tell the template of each codec that is compiled from now on."""
        for maker in ("_encoder", "_decoder"):
            setattr(codec, maker, functools.partial(self._made, maker, getattr(codec, maker)))

    def _made(self, maker: str, make: Any, cls: type[Message], version: int) -> Any:
        made = make(cls, version)
        with contextlib.suppress(OSError):  # the template is slow, or has ended
            self._theirs.send(json.dumps((maker, cls.__module__, cls.__name__, version)).encode())
        return made


def _import_what_nodes_import() -> None:
    import uvloop  # noqa: F401

    import diskless.broker
    import diskless.stores.directory  # noqa: F401
    import esker.cli
    import esker.client.client
    import esker.commands.cluster_access
    import esker.commands.start
    import esker.server.node  # noqa: F401


def main() -> None:
    """The template: import, and fork whenever it is asked to."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    _import_what_nodes_import()
    gc.collect()
    gc.freeze()  # what is imported stays, in every fork
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the test process and for nodes
    codecs = _Codecs()
    request, files = _next_fork(channel, codecs)
    codecs.report()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    channel.close()
    for standard, file in enumerate(files):
        os.dup2(file, standard)
        os.close(file)
    os.chdir(request["cwd"])
    sys.path[0] = request["cwd"]
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv[1:] = request["args"]  # the first is set by what follows
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
