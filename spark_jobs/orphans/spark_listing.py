"""Makes, keeps and compares a listing in Spark, for buckets too large for one machine.

    listing = list_in_spark(spark, uri, options, naming, now_ms)

The interface and the results are those of `listing.Listing`. Tasks list; their rows are kept on the
executors' disks, so the store is listed before the logs are read. A join removes live objects where
the rows are; only the rest comes to this process, in the order of the keys, in chunks.

The trap: a lost executor takes its rows along, and Spark lists that part again, later than the logs
were read. It does no harm: objects uploaded since belong to an open lease, or to none.

Source: docs/design/pipeline.md#orphans; spark_jobs/orphans/known_objects.py (why time matters so
little).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import pyarrow as pa

from spark_jobs.orphans.known_objects import Ids, KnownObjects
from spark_jobs.orphans.listing import MAX_CLUSTERS, ORDER, ROW, SAMPLE, Naming, Rows, Tally
from spark_jobs.orphans.scan import WholeListing
from spark_jobs.readers.object_store import StoreOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TASKS: Final = 32
COLUMNS: Final = tuple(ROW.names or ())
PIECE_ROWS: Final = 10_000
COUNTED_ROWS: Final = 10 * MAX_CLUSTERS
"""Rows of counts that are fetched: this cluster's objects, and others' by cluster."""


class AnyListing(WholeListing, Protocol):
    """A complete listing that both comparisons accept."""

    def suspects(self, known: Mapping[int, KnownObjects]) -> Iterator[tuple[int, Ids]]:
        """Yield by coordinator the live objects that the listing lacks or has with another size."""
        ...


@dataclass(frozen=True, slots=True)
class SparkListing:
    """A complete listing that Spark keeps."""

    spark: SparkSession
    own: DataFrame  # our objects, one a row
    began_ms: int
    ended_ms: int
    tally: Tally

    def not_live(self, known: Mapping[int, KnownObjects]) -> Iterator[Rows]:
        """Yield the listed objects that are live in no coordinator's log, by a Spark join."""
        live = live_objects(self.spark, known).select("coordinator", "object_id")
        left = self.own.join(live, ["coordinator", "object_id"], "left_anti")
        found = left.select(*COLUMNS).orderBy(*ORDER).toLocalIterator()
        while chunk := [tuple(row) for row in islice(found, PIECE_ROWS)]:
            yield np.array(chunk, ROW)

    def suspects(self, known: Mapping[int, KnownObjects]) -> Iterator[tuple[int, Ids]]:
        """Yield by coordinator the live objects that the listing lacks or has with another size."""
        columns = ["coordinator", "object_id", "size_bytes"]
        listed = self.own.select(*columns)
        left = live_objects(self.spark, known).join(listed, columns, "left_anti")
        found = left.orderBy("coordinator", "object_id").toLocalIterator()
        while chunk := list(islice(found, PIECE_ROWS)):
            for coordinator, rows in groupby(chunk, key=lambda row: row.coordinator):
                yield coordinator, np.array([row.object_id for row in rows], np.int64)


def live_objects(spark: SparkSession, known: Mapping[int, KnownObjects]) -> DataFrame:
    """Return a DataFrame with the coordinator, id and size of each live object."""
    coordinators = [
        np.full(len(objects.live), number, np.int32) for number, objects in known.items()
    ]
    empty = np.empty(0, np.int64)
    table = pa.table(
        {
            "coordinator": np.concatenate([*coordinators, empty.astype(np.int32)]),
            "object_id": np.concatenate([*(objects.live for objects in known.values()), empty]),
            "size_bytes": np.concatenate(
                [*(objects.live_bytes for objects in known.values()), empty]
            ),
        }
    )
    return spark.createDataFrame(table)


def list_in_spark(
    spark: SparkSession,
    uri: str,
    options: StoreOptions,
    naming: Naming,
    now_ms: Callable[[], int],
    *,
    tasks: int = TASKS,
) -> SparkListing:
    """List all keys of the store that begin with two hex digits, and keep the listing in Spark.

    Raises:  what Spark raises if a task fails: then there is no listing.
    """
    from pyspark import StorageLevel
    from pyspark.sql import functions as f

    from spark_jobs.orphans.listing_source import NAME, OWN, STRANGE, ListingSource

    spark.dataSource.register(ListingSource)
    given = {
        "store": uri,
        "endpoint": options.endpoint or "",
        "region": options.region or "",
        "prefix": naming.prefix,
        "cluster": naming.cluster_id,
        "ancestors": json.dumps(naming.ancestors),
        "tasks": str(tasks),
    }
    began_ms = now_ms()
    rows = spark.read.format(NAME).options(**given).load().persist(StorageLevel.DISK_ONLY)
    counted = rows.groupBy("kind", "name").agg(
        f.sum("objects").alias("objects"), f.sum("size_bytes").alias("size_bytes")
    )
    rest = ~f.col("kind").isin(OWN, STRANGE)  # of which there may be very many
    some = counted.orderBy(rest, "kind", f.desc("objects")).limit(COUNTED_ROWS).collect()
    own = rows.where(f.col("kind") == OWN)
    return SparkListing(spark, own, began_ms, now_ms(), _tally(some))


def _tally(rows: list[Any]) -> Tally:
    from spark_jobs.orphans.listing_source import FOREIGN, OWN, STRANGE
    from spark_jobs.orphans.listing_source import SAMPLE as SAMPLED

    tally = Tally()
    for row in rows:
        match row.kind:
            case kind if kind == OWN:
                tally.objects, tally.size_bytes = row.objects, row.size_bytes
            case kind if kind == FOREIGN:
                tally.add(Tally(foreign_bytes=row.size_bytes))
                tally.foreign[row.name] += row.objects
            case kind if kind == STRANGE:
                tally.strange, tally.strange_bytes = row.objects, row.size_bytes
            case kind if kind == FOREIGN + SAMPLED and len(tally.foreign_sample) < SAMPLE:
                tally.foreign_sample.append(row.name)
            case kind if kind == STRANGE + SAMPLED and len(tally.strange_sample) < SAMPLE:
                tally.strange_sample.append(row.name)
    return tally
