"""Checks that a bucket accepts what brokers write, before a cluster is created for it.

A broker does not look at its store until there is something to write, and then tries for a minute:
a bucket that is spelt wrong would show as a cluster that is ready and a producer that hangs. So
`esker dev` writes, reads and deletes one small object of its own, under a key that no broker uses.
"""

from __future__ import annotations

from typing import Final

from diskless.stores.interface import ByteRange, StorageError
from diskless.stores.s3 import S3Config, S3Storage
from esker.dev.cluster import DevError, Identity
from raft.net.runner import run

PROBE: Final = b"esker dev looks whether it can write, read and delete here\n"


def check_bucket(identity: Identity) -> None:
    """Raise DevError if the cluster's bucket is unusable; a directory store is not checked."""
    store = identity.store
    if store.bucket is None:
        return
    config = S3Config(
        bucket=store.bucket,
        endpoint_url=store.endpoint,
        region=store.region,
        path_style=store.endpoint is not None,
        connections=1,
        connect_timeout_s=3.0,
        read_timeout_s=10.0,
        attempts=2,
    )
    try:
        run(_try(S3Storage(config), f"esker-dev/{identity.cluster_id}"))
    except StorageError as error:
        why = str(error).removeprefix(f"{error.key}: ")
        name = f"s3://{store.bucket}" + (f" at {store.endpoint}" if store.endpoint else "")
        raise DevError(
            f"{name} cannot be used: {why}. The bucket must be there, and AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY (or ~/.aws) may write, read and delete in it"
        ) from error


async def _try(storage: S3Storage, key: str) -> None:
    try:
        await storage.upload(key, [PROBE], len(PROBE))
        await storage.fetch(key, ByteRange(0, len(PROBE)))
        await storage.delete([key])
    finally:
        await storage.close()
