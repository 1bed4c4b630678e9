"""Finds a WAL object by a file name, `s3://BUCKET/KEY`, a key or an id.

A key or an id needs to know the store: it is told by `--store`, or the broker at
`--bootstrap-server` tells its own. An id alone is found by making its key, where a broker says
which cluster that is; else the whole store is searched for a key that ends in it.

Nothing is changed anywhere: a directory store is read as the files it is, without opening it.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from diskless.stores.interface import ByteRange
from diskless.stores.s3 import S3Config, S3Storage
from esker.client.client import ClientError, KafkaClient
from records.compression import Buffer
from records.object_keys import ObjectKeys, check_key
from records.rpc.cluster import DescribeClusterRequest, DescribeClusterResponse
from records.rpc.configs import DescribeConfigsRequest, DescribeConfigsResponse
from records.rpc.objects import DescribeDisklessObjectRequest, DescribeDisklessObjectResponse

OBJECT_ID: Final = re.compile(r"0|[1-9][0-9]{0,18}")
S3: Final = "s3://"
BROKER: Final = 4  # resource type of DescribeConfigs
MAX_SEARCHED: Final = 10_000_000
"""Objects looked at for an id; more are searched by a key."""


class NoSuchObjectError(Exception):
    """The object does not exist, or its store is unknown; the message names the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Place:
    """A bucket, its endpoint and region."""

    bucket: str
    endpoint: str | None = None
    region: str | None = None

    def open(self) -> S3Storage:
        """Open the bucket as an object store.

        Raises StorageError.
        """
        return S3Storage(
            S3Config(
                bucket=self.bucket,
                endpoint_url=self.endpoint,
                region=self.region,
                path_style=self.endpoint is not None,
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A broker's answer on its cluster and its store."""

    cluster_id: str
    key_prefix: str
    place: Path | S3Place


class FileObject:
    """An object in a file."""

    def __init__(self, path: Path, name: str | None = None) -> None:
        self.name = name or str(path)
        self.size_bytes = path.stat().st_size
        self._path = path

    def read(self, offset: int, size: int) -> Buffer:
        """Read exactly `size` bytes of the file from `offset`.

        Raises OSError, also for a file that has become shorter.
        """
        with self._path.open("rb") as file:
            file.seek(offset)
            data = file.read(size)
        if len(data) != size:
            raise OSError(5, "it became shorter while it was read")
        return data

    def close(self) -> None:
        """Do nothing, because the file is opened for each read."""


class S3Object:
    """An object in a bucket, read by one client until it is closed."""

    def __init__(self, place: S3Place, key: str) -> None:
        """Open an object in a bucket and read its size.

        Raises NoSuchObjectError, StorageError.
        """
        self.name = f"{S3}{place.bucket}/{key}"
        self._key = key
        self._store = place.open()
        self._runner = asyncio.Runner()
        try:
            self.size_bytes = self._runner.run(self._size())
        except BaseException:
            self.close()
            raise

    def read(self, offset: int, size: int) -> Buffer:
        """Read exactly `size` bytes of the object from `offset`.

        Raises StorageError.
        """
        return self._runner.run(self._store.fetch(self._key, ByteRange(offset, size)))

    def close(self) -> None:
        """Close the S3 client's threads and connections."""
        self._runner.run(self._store.close())
        self._runner.close()

    async def _size(self) -> int:
        async for found in self._store.list_objects(self._key):
            if found.key == self._key:  # it sorts before all that begin with it
                return found.size_bytes
            break
        raise NoSuchObjectError(f"{self.name}: no such object")


def parse_place(store: str, endpoint: str | None, region: str | None) -> Path | S3Place:
    """Parse `--store`: a directory, or `s3://BUCKET`. Raises NoSuchObjectError."""
    if not store.startswith(S3):
        return Path(store)
    bucket = store.removeprefix(S3).rstrip("/")
    if not bucket or "/" in bucket:
        raise NoSuchObjectError(f"{store!r} is not s3://BUCKET")
    return S3Place(bucket=bucket, endpoint=endpoint, region=region)


def object_at_url(url: str, endpoint: str | None, region: str | None) -> S3Object:
    """Open the object at `s3://BUCKET/KEY`. Raises NoSuchObjectError, StorageError."""
    bucket, _, key = url.removeprefix(S3).partition("/")
    if not bucket or not key:
        raise NoSuchObjectError(f"{url!r} is not s3://BUCKET/KEY")
    return S3Object(S3Place(bucket=bucket, endpoint=endpoint, region=region), key)


def find_object(
    name: str, place: Path | S3Place, *, coordinator: int, cluster: Cluster | None
) -> FileObject | S3Object:
    """Open a WAL object by its key or by its id.

    Args:    coordinator: which partition of `__diskless-metadata` gave the id.
    Raises:  NoSuchObjectError, StorageError, OSError.
    """
    key = name
    if OBJECT_ID.fullmatch(name):
        if cluster is None:
            key = _search(place, f"{coordinator}/{name}")
        else:
            keys = ObjectKeys(
                prefix=cluster.key_prefix,
                cluster_id=cluster.cluster_id,
                coordinator_partition=coordinator,
            )
            key = keys.key(int(name))
    try:
        check_key(key)
    except ValueError as error:
        raise NoSuchObjectError(f"{error}: name a file, s3://BUCKET/KEY, a key or an id") from None
    try:
        return _open(place, key)
    except NoSuchObjectError:
        if key == name:
            raise
    return _open(place, _search(place, f"{coordinator}/{name}"))  # of a cluster before a restore


def _open(place: Path | S3Place, key: str) -> FileObject | S3Object:
    """Open an object by its key. Raises NoSuchObjectError, StorageError, OSError."""
    if isinstance(place, S3Place):
        return S3Object(place, key)
    path = place / key
    if not path.is_file():
        raise NoSuchObjectError(f"{path}: no such object")
    return FileObject(path)


def _search(place: Path | S3Place, end: str) -> str:
    if isinstance(place, S3Place):
        found = asyncio.run(_search_places(place, end))
    else:
        found = [str(path.relative_to(place)) for path in place.glob(f"**/{end}")]
    if len(found) != 1:
        many = f"{len(found)} objects end" if found else "no object ends"
        raise NoSuchObjectError(f"{many} in /{end}: name the key, or a --bootstrap-server")
    return found[0]


async def _search_places(place: S3Place, end: str) -> list[str]:
    store = place.open()
    found = []
    seen = 0
    try:
        async for one in store.list_objects(""):
            seen += 1
            if one.key.endswith(f"/{end}") or one.key == end:
                found.append(one.key)
            if seen == MAX_SEARCHED:
                raise NoSuchObjectError(f"not among {seen} objects: name the key")
    finally:
        await store.close()
    return found


# --- what a broker knows ------------------------------------------------------------------------


async def cluster_of(client: KafkaClient) -> Cluster:
    """Request the cluster id and the object store's location from any broker.

    Raises ClientError, NoSuchObjectError.
    """
    described = await client.ask_any(
        DescribeClusterRequest(include_cluster_authorized_operations=False),
        DescribeClusterResponse,
    )
    if not described.brokers:
        raise ClientError("the cluster has no broker that could say where its objects are")
    node = described.brokers[0].broker_id
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=BROKER, resource_name=str(node), configuration_keys=None
    )
    await client.metadata(())
    answer = await client.ask(
        node, DescribeConfigsRequest(resources=(resource,)), DescribeConfigsResponse
    )
    (result,) = answer.results
    if result.error_code:
        raise ClientError(f"broker {node}: {result.error_message or result.error_code}")
    values = {one.name: one.value or "" for one in result.configs}
    bucket = values.get("esker.storage.s3.bucket", "")
    directory = values.get("esker.storage.directory.path", "")
    place: Path | S3Place
    if "s3" in values.get("diskless.storage.class.name", "") and bucket:
        place = S3Place(
            bucket=bucket,
            endpoint=values.get("esker.storage.s3.endpoint") or None,
            region=values.get("esker.storage.s3.region") or None,
        )
    elif directory:
        place = Path(directory)
    else:
        raise NoSuchObjectError("the broker does not say where its objects are: name the --store")
    return Cluster(
        cluster_id=described.cluster_id,
        key_prefix=values.get("esker.object.key.prefix", ""),
        place=place,
    )


async def known_of(
    client: KafkaClient, key: str, coordinator: int
) -> DescribeDisklessObjectResponse:
    """Request the coordinator's metadata of an object. Raises ClientError if unknown."""
    request = DescribeDisklessObjectRequest(coordinator_partition=coordinator, object_key=key)
    answer = await client.ask_any(request, DescribeDisklessObjectResponse)
    if answer.error_code:
        message = answer.error_message or f"the coordinator returned error {answer.error_code}"
        raise ClientError(message, answer.error_code)
    return answer
