"""The options that name the object store, the same for every command of `esker spark`.

    def orphans(store: StoreUri, endpoint: Endpoint = None, region: Region = None) -> None:
        with opened(store, endpoint, region) as objects:
            ...

They are those of `esker dump-log`. Credentials are found as AWS tools find them.

Source: docs/design/broker.md#object-stores, docs/design/pipeline.md#spark-deletes-nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from diskless.stores.interface import StorageError
from esker.commands.spark.common import ENVIRONMENT, stop
from spark_jobs.readers.object_store import ObjectStore, StoreOptions, open_store

StoreUri = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="DIR|s3://BUCKET",
        help="Directory or s3://BUCKET of the object store of the cluster's brokers.",
    ),
]
Endpoint = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="URL (http://HOST:PORT) of the bucket's S3 service; default: Amazon's URL.",
    ),
]
Region = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Name of the bucket's AWS region; default: the AWS configuration's region.",
    ),
]


@contextmanager
def store_for_command(
    uri: str, endpoint: str | None = None, region: str | None = None
) -> Iterator[ObjectStore]:
    """Open the object store for a `with` block; a storage error ends the command.

    Raises:  typer.BadParameter if the URI names no store.
    """
    try:
        store = open_store(uri, StoreOptions(endpoint, region))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        yield store
    except StorageError as error:
        stop(f"the object store: {error}", ENVIRONMENT)
    finally:
        store.close()
