"""The pinned Kafka, what it wrote, and when these tests may be skipped.

pytest tests/interop                    # against a real Kafka where Java and mvn are there
pytest tests/interop --record-kafka     # also writes tests/data/kafka/ anew
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest

from tests.interop import recording
from tests.interop.kafka_release import (
    KafkaMissingError,
    KafkaSetupError,
    fetch,
    locked,
    setup_failure_is_a_failure,
)
from tests.interop.kafka_run import Kafka
from tests.interop.kafka_scenario import write_log, write_static_voter_log
from tests.interop.kafka_schemas import Schema, schemas

TIMEOUT_S = 660  # the first test of a fresh machine waits for mvn


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record-kafka",
        action="store_true",
        help="write what the real Kafka wrote during these tests into tests/data/kafka/",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/interop/"):
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def kafka_release() -> Kafka:
    """The pinned release."""
    try:
        return Kafka(fetch())
    except (KafkaMissingError, KafkaSetupError) as error:
        skip_or_fail(f"NOT COMPARED WITH APACHE KAFKA: {error}", error)


def skip_or_fail(reason: str, error: Exception) -> NoReturn:
    """End a test whose jars could not be fetched: as failed where the fault must be seen."""
    if setup_failure_is_a_failure(error):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def kafka(kafka_release: Kafka, request: pytest.FixtureRequest) -> Kafka:
    """The pinned release, ready to run, with a class archive.

    Why: without the archive a node costs three times the processor time, and a tool twice. The
    recorded node leaves one behind, so on a fresh machine the recording is made first.
    """
    if not kafka_release.class_archive.exists():
        request.getfixturevalue("written_by_kafka")
    return kafka_release


@pytest.fixture(scope="session")
def upstream_schemas(kafka_release: Kafka) -> dict[str, Schema]:
    """The message schemas inside the release's jars, by message name."""
    return schemas(kafka_release.jars)


@pytest.fixture(scope="session")
def written_by_kafka(
    kafka_release: Kafka, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> recording.Recording:
    """What a real Kafka wrote during this very run; one node's life, shared by all workers."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    home = base / "kafka"
    with locked(base / "kafka.lock"):
        if not home.exists():
            partial = base / "kafka.partial"
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            lives = Path(tempfile.mkdtemp(dir=base))
            # One after the other: all but the first start from the class archive that it leaves.
            dynamic = write_log(kafka_release, lives / "node")
            static = write_static_voter_log(kafka_release, lives / "controller")
            recording.keep(dynamic, partial / recording.DYNAMIC)
            recording.keep(static, partial / recording.STATIC)
            recording.describe(kafka_release, partial)
            partial.rename(home)
            if request.config.getoption("--record-kafka", default=False):
                recording.replace(home)
    return recording.Recording(home)


@pytest.fixture(scope="session")
def recorded_from_kafka() -> recording.Recording:
    """What a real Kafka wrote once, kept in tests/data/kafka/: there on every machine."""
    return recording.Recording(recording.DIRECTORY)


@pytest.fixture(params=[pytest.param("written now", marks=pytest.mark.java), "recorded"])
def kafka_files(request: pytest.FixtureRequest) -> recording.Recording:
    """What a real Kafka wrote: now, or once."""
    fixture = "written_by_kafka" if request.param == "written now" else "recorded_from_kafka"
    found: recording.Recording = request.getfixturevalue(fixture)
    return found
