"""Spark lists and compares like the local engine. Source: docs/design/pipeline.md#orphans."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed")

from spark_jobs.orphans import spark_listing
from spark_jobs.orphans.known_objects import KnownObjects, known_objects_of
from spark_jobs.orphans.listing import Naming, Rows, take_listing
from spark_jobs.orphans.spark_listing import SparkListing, list_in_spark
from spark_jobs.readers.object_store import DirectoryStore, StoreOptions
from tests.coordinator.batch.subjects import KEYS
from tests.spark_jobs.orphans_world import NAMING, Values, now
from tests.spark_jobs.test_dangling import Stored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def life(tmp_path: Path) -> Stored:
    """Return a bucket with live and lost objects, orphans, another cluster's and odd keys."""
    stored = Stored(tmp_path)
    now(stored.live_for(120))
    lost, cut, *_ = stored.used()
    stored.path(lost).unlink()
    os.truncate(stored.path(cut), 1)
    for key in (Naming(KEYS.prefix, "c-2").key(0, 1), f"{KEYS.prefix}/00/odd", *_late(stored)):
        path = stored.directory / "objects" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"xyz")
    return stored


def _late(stored: Stored) -> list[str]:
    return [KEYS.key(object_id) for object_id in stored.gone] + [NAMING.key(1, 7)]


def known(stored: Stored) -> dict[int, KnownObjects]:
    end = len(stored.records)
    return {0: known_objects_of([Values(stored.records, end_offset=end)], end, coordinator=0)}  # type: ignore[list-item]


def listed_by(spark: SparkSession, uri: str) -> SparkListing:
    return list_in_spark(spark, uri, StoreOptions(), NAMING, lambda: 5, tasks=4)


def test_spark_and_the_local_engine_list_the_same_objects_and_find_the_same_orphans(
    spark: SparkSession, life: Stored, tmp_path: Path
) -> None:
    (tmp_path / "scratch").mkdir()
    here = take_listing(life.objects, NAMING, tmp_path / "scratch", lambda: 5)
    there = listed_by(spark, life.objects.uri)
    assert there.tally == here.tally
    assert (there.began_ms, there.ended_ms) == (5, 5)
    assert (here.tally.foreign, here.tally.strange) == ({"c-2": 1}, 1)
    logs = known(life)

    def whole(pieces: list[Rows]) -> Rows:
        return np.concatenate(pieces)

    left = whole(list(here.not_live(logs)))
    assert whole(list(there.not_live(logs))).tolist() == left.tolist()
    assert len(left) >= len(life.gone) > 0
    suspects = [[(c, i) for c, ids in one.suspects(logs) for i in ids] for one in (here, there)]
    assert suspects[0] == suspects[1] == sorted((0, object_id) for object_id in life.used()[:2])


def test_a_store_listing_in_spark_counts_own_objects_and_other_clusters_objects_separately(
    spark: SparkSession, life: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_listing, "COUNTED_ROWS", 2)
    tally = listed_by(spark, life.objects.uri).tally
    assert tally.objects >= len(life.used()) - 1
    assert tally.strange == 1


def test_a_store_listing_in_spark_fails_if_one_of_its_tasks_fails(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match="no-such-place"):
        listed_by(spark, str(DirectoryStore(tmp_path / "no-such-place").uri))
