"""Options that tests of several rooms share, and what they all start from."""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is, and nothing of what is tested.
settings.register_profile("esker", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("esker")

# Hundreds of processes are started here. Where bytecode is not to be written (as images of
# containers have it), each would compile all of Esker first: a second of work instead of a third.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Commands connect to the clusters of the tests, and not to those of the person who runs them.
os.environ["ESKER_CONFIG"] = os.devnull
for variable in ("ESKER_PROFILE", "ESKER_BOOTSTRAP_SERVERS"):
    os.environ.pop(variable, None)


def pytest_collection() -> None:
    """Nothing that collecting ten thousand tests makes is garbage: do not look for it."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Garbage collections from here on look only at what the tests make."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the nemesis first: one worker waits for its faults to pass while others compute.

    Where several workers run it at the same time, at the end, the processors are idle.
    """
    items.sort(key=lambda item: not item.nodeid.startswith("tests/nemesis/"))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Fail a test that leaves its security to the connections of later tests of this process."""
    security = sys.modules.get("raft.net.security")
    if security is not None and security.outgoing_security() is not None:
        security.use_outgoing(None)
        pytest.fail("`outgoing` was left by two overlapping blocks: pass `security` to `connect`")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="write transcripts anew instead of comparing them"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`--dist loadscope`: the tests of a folder stay together, and share a session of Spark.

    xdist's own scope is a file, and its groups come to nothing with pytest 9.
    """
    if config.getvalue("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByFolder(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid.partition("::")[0].rpartition("/")[0]

    return ByFolder(config, log)


def pytest_configure() -> None:
    """Ctrl-C reaches what tests start.

    A shell that starts something in the background has it ignore SIGINT, and so do its children.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
