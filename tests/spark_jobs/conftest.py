"""One Spark session for every test marked `spark`: starting one takes longer than most of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark_jobs.report_world import World

CACHE: Final = Path(__file__).parents[2] / ".cache"


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Start one session for all tests, which leave no view, setting or stream in it.

    The class archive is for the next run; where CI is set there is none.
    """
    from spark_jobs.session.spark_session import session

    with session(
        "local[2]",
        app="tests",
        cache=CACHE,
        keep_classes="CI" not in os.environ,
    ) as started:
        yield started


@pytest.fixture(scope="session")
def harbour(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Write the logs and objects of a cluster's two hours, for reports."""
    from tests.spark_jobs.report_world import build

    return build(tmp_path_factory.mktemp("harbour") / "log", step_ms=40_000, segment_batches=150)
