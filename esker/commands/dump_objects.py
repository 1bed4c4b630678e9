"""The part of `esker dump-log` that is of WAL objects: find them, show them, verify them."""

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
    """Where to look for what is no file here."""

    store: str | None
    endpoint: str | None
    region: str | None
    bootstrap: tuple[Endpoint, ...] | None
    coordinator: int
    _cluster: Cluster | None = field(default=None, init=False)

    def find(self, name: str) -> ObjectBytes | None:
        """The object that a word of the command line names; None: an ordinary file.

        Raises:  NoSuchObjectError, StorageError, OSError, ClientError.
        """
        if name.startswith(S3):
            return object_at_url(name, self.endpoint, self.region)
        path = Path(name)
        if path.is_file():
            return FileObject(path) if _is_object(path) else None
        if path.exists() or (self.store is None and self.bootstrap is None):
            return None
        cluster = self._ask_cluster()
        if self.store is not None:
            place = parse_place(self.store, self.endpoint, self.region)
        else:
            assert cluster is not None, "one of the two was given"
            place = cluster.place
            if isinstance(place, S3Place) and self.endpoint is not None:
                place = parse_place(f"{S3}{place.bucket}", self.endpoint, self.region)
        return find_object(name, place, coordinator=self.coordinator, cluster=cluster)

    def known(self, source: ObjectBytes) -> DescribeDisklessObjectResponse | None:
        """What the object's coordinator knows of it; None where nobody can be asked.

        Raises:  ClientError, NoSuchObjectError.
        """
        named = parse_name(source.name)
        if self.bootstrap is None or named is None:
            return None
        cluster = self._ask_cluster()
        assert cluster is not None, "a bootstrap server was given"
        if named.cluster_id != cluster.cluster_id:
            reason = f"is of cluster {named.cluster_id}, the broker is of {cluster.cluster_id}"
            raise NoSuchObjectError(f"{source.name}: {reason}")
        prefix = f"{cluster.key_prefix}/" if cluster.key_prefix else ""
        end = "/".join(source.name.split("/")[-4:])
        return self._asked(lambda client: known_of(client, prefix + end, named.coordinator))

    def _ask_cluster(self) -> Cluster | None:
        if self._cluster is None and self.bootstrap is not None:
            self._cluster = self._asked(cluster_of)
        return self._cluster

    def _asked(self, question: Callable[[KafkaClient], Awaitable[T]]) -> T:
        assert self.bootstrap is not None, "nobody to ask"
        bootstrap = self.bootstrap

        async def asked() -> T:
            async with KafkaClient(bootstrap, timeout_ms=TIMEOUT_MS) as client:
                return await question(client)

        try:
            return run(asked())
        except NetError as error:
            raise ClientError(str(error)) from error


def _is_object(path: Path) -> bool:
    """By its name, as all kinds are: an object's is its number."""
    return path.name.isascii() and path.name.isdecimal()
