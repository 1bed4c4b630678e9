"""Spark masters: `local[2]`, `spark://host:7077`, or another cluster's address.

Spark waits a minute, silently, for a standalone cluster that does not answer; so the port is tried
first.

Source: Spark's page on submitting applications (master URLs).
"""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from typing import Final

from spark_jobs.session.failures import Failure, SessionError

MOST_THREADS: Final = 8  # of the default; each has a Python process of 200 MB beside it
CONNECT_SECONDS: Final = 5.0
LEAST_MEMORY: Final = 480 << 20  # less than 450 MiB Spark refuses
_UNITS: Final = {"": 1 << 20, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True, slots=True)
class Master:
    """A Spark master's address, parsed as far as sessions need it."""

    url: str
    threads: int  # where it is local; else 0
    addresses: tuple[tuple[str, int], ...]  # of a standalone cluster: any of them is its master

    @property
    def is_local(self) -> bool:
        """Return whether the master runs inside this process's own JVM."""
        return self.threads > 0

    def check_reachable(self) -> None:
        """Raise SessionError if a standalone cluster's master accepts no connection."""
        if self.addresses and self._connect() is None:
            raise SessionError(
                Failure(f"no Spark master answers at {self.url}", "is it running there?")
            )

    def facing_address(self) -> str | None:
        """Return the local address that can reach the master; None lets Spark choose an address."""
        return self._connect()

    def _connect(self) -> str | None:
        for address in self.addresses:
            try:
                with socket.create_connection(address, timeout=CONNECT_SECONDS) as connection:
                    return str(connection.getsockname()[0])
            except OSError:
                continue
        return None


def parse_master(url: str | None) -> Master:
    """Parse the URL of a Spark master.

    Raises:  ValueError.

    >>> parse_master("local[3]").threads, parse_master("spark://a:7077,b:7078").addresses
    (3, (('a', 7077), ('b', 7078)))
    """
    cores = os.cpu_count() or 1
    if url is None:
        threads = max(2, min(MOST_THREADS, cores))
        return Master(f"local[{threads}]", threads, ())
    local = re.fullmatch(r"local(?:\[(\*|[1-9]\d{0,3})(?:,\d+)?\])?", url)
    if local:
        return Master(url, {None: 1, "*": cores}.get(local[1]) or int(local[1]), ())
    if url.startswith("spark://"):
        addresses = [re.fullmatch(r"(.+):(\d{1,5})", part) for part in url[8:].split(",")]
        if all(address is not None and int(address[2]) < 1 << 16 for address in addresses):
            return Master(
                url, 0, tuple((address[1], int(address[2])) for address in addresses if address)
            )
    elif url == "yarn" or url.startswith("k8s://"):
        return Master(url, 0, ())
    raise ValueError(f"{url!r} is not the address of a Spark cluster; write spark://HOST:7077")


def parse_memory(text: str) -> str:
    """Parse a memory size, such as 2g, into the JVM's form.

    Raises:  ValueError.

    >>> parse_memory("2G")
    '2g'
    """
    found = re.fullmatch(r"(\d{1,9})([kmg]?)b?", text.lower())
    if found is None:
        raise ValueError(f"{text!r} is not a memory size; write 512m or 2g")
    if int(found[1]) * _UNITS[found[2]] < LEAST_MEMORY:
        raise ValueError(f"{text} is too little for Spark; the minimum is {LEAST_MEMORY >> 20}m")
    return found[1] + (found[2] or "m")
