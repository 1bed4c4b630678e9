"""Finds WAL objects for `esker dump-log`, and their coordinator's metadata."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from esker.client.client import ClientError, KafkaClient
from esker.dump.wal import ObjectBytes, parse_name
from esker.dump.wal_sources import (
    S3,
    Cluster,
    FileObject,
    NoSuchObjectError,
    S3Place,
    cluster_of,
    find_object,
    known_of,
    object_at_url,
    parse_place,
)
from esker.settings.values import Endpoint
from raft.net.errors import NetError
from raft.net.runner import run
from records.rpc.objects import DescribeDisklessObjectResponse

T = TypeVar("T")

TIMEOUT_MS: Final = 10_000


@dataclass(slots=True)
class Objects:
    """Finds WAL objects as local files, in an object store, or through a cluster's brokers."""

    store: str | None
    endpoint: str | None
    region: str | None
    bootstrap: tuple[Endpoint, ...] | None
    coordinator: int
    _cluster: Cluster | None = field(default=None, init=False)

    def find(self, name: str) -> ObjectBytes | None:
        """Return the WAL object that an argument names, or None for an ordinary file.

        Raises:  NoSuchObjectError, StorageError, OSError, ClientError.
        """
        if name.startswith(S3):
            return object_at_url(name, self.endpoint, self.region)
        path = Path(name)
        if path.is_file():
            return FileObject(path) if _is_object(path) else None
        if path.exists() or (self.store is None and self.bootstrap is None):
            return None
        cluster = self._load_cluster()
        if self.store is not None:
            place = parse_place(self.store, self.endpoint, self.region)
        else:
            assert cluster is not None, "neither --store nor --bootstrap-server was given"
            place = cluster.place
            if isinstance(place, S3Place) and self.endpoint is not None:
                place = parse_place(f"{S3}{place.bucket}", self.endpoint, self.region)
        return find_object(name, place, coordinator=self.coordinator, cluster=cluster)

    def known(self, source: ObjectBytes) -> DescribeDisklessObjectResponse | None:
        """Return the coordinator's metadata of an object, or None without a bootstrap server.

        Raises:  ClientError, NoSuchObjectError.
        """
        named = parse_name(source.name)
        if self.bootstrap is None or named is None:
            return None
        cluster = self._load_cluster()
        assert cluster is not None, "a bootstrap server was given"
        prefix = f"{cluster.key_prefix}/" if cluster.key_prefix else ""
        end = "/".join(source.name.split("/")[-4:])
        try:
            return self._call(lambda client: known_of(client, prefix + end, named.coordinator))
        except ClientError:
            if named.cluster_id == cluster.cluster_id:
                raise
            # Of an ancestor of a restored cluster the coordinator would have known it.
            reason = f"is of cluster {named.cluster_id}, the broker is of {cluster.cluster_id}"
            raise NoSuchObjectError(f"{source.name}: {reason}") from None

    def _load_cluster(self) -> Cluster | None:
        if self._cluster is None and self.bootstrap is not None:
            self._cluster = self._call(cluster_of)
        return self._cluster

    def _call(self, request: Callable[[KafkaClient], Awaitable[T]]) -> T:
        assert self.bootstrap is not None, "no bootstrap server"
        bootstrap = self.bootstrap

        async def exchange() -> T:
            async with KafkaClient(bootstrap, timeout_ms=TIMEOUT_MS) as client:
                return await request(client)

        try:
            return run(exchange())
        except NetError as error:
            raise ClientError(str(error)) from error


def _is_object(path: Path) -> bool:
    """Return whether a file's name is a decimal number, as the name of every WAL object is."""
    return path.name.isascii() and path.name.isdecimal()
