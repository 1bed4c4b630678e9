"""One Spark session for every test marked `spark`: starting one takes longer than most of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Tests leave nothing behind in it: no view, no setting, no stream."""
    from spark_jobs.session import start_session, stop_session

    session = start_session(app="tests")
    try:
        yield session
    finally:
        stop_session(session)
