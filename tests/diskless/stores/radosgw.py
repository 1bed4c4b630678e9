"""Ceph's radosgw: a real S3 server, which checks signatures and keeps to conditions.

    with radosgw(directory) as server:
        server.endpoint, server.access_key, server.secret_key

One monitor, one OSD that keeps everything in memory, one gateway, about fifteen seconds. Debian:
`apt-get install --no-install-recommends ceph-mon ceph-osd radosgw ceph-common` (64 MB).

Source: Ceph's manual deployment and `vstart.sh`.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple
from uuid import uuid4

from tests.ports import free_port
from tests.waiting import DEADLINE_S, wait_until

PROGRAMS: Final = ("ceph-mon", "ceph-osd", "radosgw", "ceph", "ceph-authtool", "monmaptool")
MISSING: Final = (
    "radosgw is not here: apt-get install --no-install-recommends "
    "ceph-mon ceph-osd radosgw ceph-common"
)

CONF: Final = """[global]
fsid = {fsid}
mon_host = [v2:127.0.0.1:{mon_port}]
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx
keyring = {home}/keyring
run_dir = {home}
admin_socket = {home}/$name.$pid.asok
log_file = {home}/$name.log
pid_file =
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 1
osd_pool_default_pgp_num = 1
mon_allow_pool_size_one = true
osd_crush_chooseleaf_type = 0
osd_objectstore = memstore
memstore_device_bytes = 1073741824
mon_data = {home}/mon
osd_data = {home}/osd
"""

KEYS: Final = {
    "mon.": ("mon", "allow *"),
    "client.admin": ("mon", "allow *", "osd", "allow *"),
    "osd.0": ("mon", "allow profile osd", "osd", "allow *"),
    "client.rgw": ("mon", "allow rw", "osd", "allow rwx"),
}


class Radosgw(NamedTuple):
    """A running gateway, and one of its users."""

    endpoint: str
    access_key: str
    secret_key: str


def is_installed() -> bool:
    """Are all programs installed?"""
    return all(map(shutil.which, PROGRAMS))


@contextmanager
def radosgw(home: Path) -> Iterator[Radosgw]:
    """Run a cluster below `home` for the duration of the block."""
    fsid, osd = str(uuid4()), str(uuid4())
    mon_port, port = free_port(), free_port()
    for name in ("mon", "osd"):
        (home / name).mkdir()
    (home / "ceph.conf").write_text(CONF.format(fsid=fsid, mon_port=mon_port, home=home))
    conf = ("-c", f"{home}/ceph.conf")
    _step(home, "ceph-authtool", "--create-keyring", "keyring")
    for name, caps in KEYS.items():
        words = [
            word for cap in zip(caps[::2], caps[1::2], strict=True) for word in ("--cap", *cap)
        ]
        _step(home, "ceph-authtool", "keyring", "--gen-key", "-n", name, *words)
    address = f"[v2:127.0.0.1:{mon_port}]"
    _step(home, "monmaptool", "--create", "--addv", "a", address, "--fsid", fsid, "monmap")
    mkfs = ("--mkfs", "--monmap", "monmap", "--keyring", "keyring")
    _step(home, "ceph-mon", *conf, "-i", "a", *mkfs)
    with ExitStack() as running:
        running.enter_context(_daemon(home, "ceph-mon", *conf, "-i", "a", "-f"))
        _step(home, "ceph", *conf, "osd", "new", osd)
        _step(home, "ceph-osd", *conf, "-i", "0", "--mkfs", "--osd-uuid", osd)
        running.enter_context(_daemon(home, "ceph-osd", *conf, "-i", "0", "-f"))
        server = Radosgw(f"http://127.0.0.1:{port}", "esker-access", "esker-secret")
        front = ("--rgw-frontends", f"beast endpoint=127.0.0.1:{port}")
        running.enter_context(_daemon(home, "radosgw", *conf, "-n", "client.rgw", "-f", *front))
        _step(
            home, "radosgw-admin", *conf, "-n", "client.rgw", "user", "create", "--uid=esker",
            "--display-name=esker", f"--access-key={server.access_key}",
            f"--secret-key={server.secret_key}",
        )  # fmt: skip
        _wait_for(port)
        yield server


def _step(home: Path, *command: str) -> None:
    done = subprocess.run(
        command, cwd=home, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr[-2_000:]}"


@contextmanager
def _daemon(home: Path, *command: str) -> Iterator[None]:
    with (home / f"{command[0]}.out").open("wb") as output:
        process = subprocess.Popen(
            command, cwd=home, stdout=output, stderr=output, env={**os.environ, "LC_ALL": "C"}
        )
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int) -> None:
    def listens() -> bool:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True

    wait_until(listens, "radosgw listens", retry_on=(OSError,))
