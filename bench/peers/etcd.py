"""etcd as a peer: three nodes with default timers and fsync, loaded by h2load (raw gRPC Put).

Needs Debian's etcd-server and nghttp2-client; `available` says what is missing.
"""

from __future__ import annotations

import json
import shutil
import statistics
import struct
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tests.raft.driver.cluster import free_ports


def available() -> str | None:
    """Return None if etcd and h2load are installed, else a message that names missing ones."""
    missing = [name for name in ("etcd", "h2load") if shutil.which(name) is None]
    return f"{', '.join(missing)} not installed" if missing else None


def put_request(key: int, value_bytes: int) -> bytes:
    """Encode an etcd PutRequest as protobuf: key in field 1 and value in field 2.

    >>> put_request(1, 2)
    b'\\n\\x05k0001\\x12\\x02\\x00\\x00'
    """
    return _field(1, b"k%04d" % key) + _field(2, bytes(value_bytes))


def _field(number: int, data: bytes) -> bytes:
    """Encode a length-delimited protobuf field."""
    length, size = b"", len(data)
    while size > 0x7F:
        length += bytes([size & 0x7F | 0x80])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + data


@dataclass(frozen=True, slots=True)
class Measured:
    """Puts per second, and latencies in milliseconds."""

    per_s: float
    p50_ms: float
    p99_ms: float


class Etcd:
    """Three processes on loopback."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        ports = free_ports(6)
        self.clients, self.peers = ports[:3], ports[3:]
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        names = ",".join(f"n{i}=http://127.0.0.1:{port}" for i, port in enumerate(self.peers))
        for i, (client, peer) in enumerate(zip(self.clients, self.peers, strict=True)):
            with (self.directory / f"etcd{i}.log").open("wb") as log:
                self.processes[i] = subprocess.Popen(
                    [
                        "etcd", "--name", f"n{i}", "--data-dir", str(self.directory / f"n{i}"),
                        "--listen-client-urls", f"http://127.0.0.1:{client}",
                        "--advertise-client-urls", f"http://127.0.0.1:{client}",
                        "--listen-peer-urls", f"http://127.0.0.1:{peer}",
                        "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
                        "--initial-cluster", names, "--initial-cluster-state", "new",
                        "--max-txn-ops", "10000",
                    ],
                    stdout=log, stderr=log,
                )  # fmt: skip

    def leader(self, *, timeout_s: float = 30) -> int:
        """Wait until etcd has a leader, and return the leader's node number."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for node in self.processes:
                status = self._post(node, "maintenance/status", {})
                if status and status.get("leader") == status["header"]["member_id"]:
                    return node
            time.sleep(0.01)
        raise AssertionError("etcd elected nobody")

    def put(self, node: int) -> bool:
        """Put a key through a node, and return whether the put succeeded."""
        answer = self._post(node, "kv/put", {"key": "Zm9v", "value": "YmFy"}, timeout_s=1)
        return answer is not None and "header" in answer

    def _post(
        self, node: int, path: str, body: dict[str, str], *, timeout_s: float = 2
    ) -> dict | None:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.clients[node]}/v3/{path}", json.dumps(body).encode()
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                return json.load(answer)
        except (OSError, urllib.error.URLError, ValueError):
            return None

    def load(
        self, *, connections: int, streams: int, value_bytes: int, seconds: float, puts: int = 1
    ) -> Measured:
        """Call the leader with `connections` x `streams` calls in flight, and return the figures.

        Args:  puts: of each call; above 1 it is a transaction, of keys that are all different.
        """
        method, message = "Put", put_request(0, value_bytes)
        if puts > 1:
            # TxnRequest.success (2), each a RequestOp with request_put (2)
            ops = (_field(2, put_request(key, value_bytes)) for key in range(puts))
            method, message = "Txn", b"".join(_field(2, op) for op in ops)
        data = self.directory / "call.bin"
        data.write_bytes(b"\0" + struct.pack(">I", len(message)) + message)
        log = self.directory / "h2load.log"
        log.unlink(missing_ok=True)
        port = self.clients[self.leader()]
        subprocess.run(
            [
                "h2load", "-D", f"{seconds:.0f}", "--warm-up-time", "1",
                "-c", str(connections), "-m", str(streams), "-d", str(data),
                "-H", "content-type: application/grpc", "-H", "te: trailers",
                "--log-file", str(log), f"http://127.0.0.1:{port}/etcdserverpb.KV/{method}",
            ],
            check=True, capture_output=True,
        )  # fmt: skip
        rows = [line.split("\t") for line in log.read_text().splitlines()]
        times = sorted(int(row[2]) / 1e3 for row in rows if row[1] == "200")
        return Measured(
            per_s=len(times) / seconds,
            p50_ms=statistics.median(times),
            p99_ms=times[int(len(times) * 0.99)],
        )

    def failover_s(self) -> float:
        """Kill the leader; return the seconds to a survivor's first put, and restart the node."""
        leader = self.leader()
        began = time.monotonic()
        process = self.processes.pop(leader)
        process.kill()
        process.wait()
        arguments = process.args
        while not any(self.put(node) for node in self.processes):
            assert time.monotonic() - began < 30, "etcd did not recover"
        elapsed = time.monotonic() - began
        assert isinstance(arguments, list), "as started"
        with (self.directory / f"etcd{leader}.log").open("ab") as log:
            self.processes[leader] = subprocess.Popen(arguments, stdout=log, stderr=log)
        return elapsed

    def __enter__(self) -> Etcd:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
