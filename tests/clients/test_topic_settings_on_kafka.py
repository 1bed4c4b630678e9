"""Records what Apache Kafka answers to topic settings, or compares it with the record.

`pytest tests/clients/test_topic_settings_on_kafka.py --rewrite` records; the settings themselves
stand in the record.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests.clients.apache_kafka import apache_kafka
from tests.coordinator.controller.test_topic_settings import ANSWERS, RECORDED
from tests.interop.conftest import kafka, kafka_release, written_by_kafka
from tests.interop.kafka_run import Kafka

__all__ = ["kafka", "kafka_release", "written_by_kafka"]

pytestmark = [pytest.mark.java, pytest.mark.soak, pytest.mark.timeout(300)]


def test_kafka_accepts_and_refuses_topic_settings_as_recorded_for_comparison_with_esker(
    kafka: Kafka, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    answers = []
    with apache_kafka(kafka, tmp_path / "node") as world:
        admin = AdminClient({"bootstrap.servers": world.bootstrap})
        for settings, _ in ANSWERS:
            topic = NewTopic("t", 1, 1, config=settings)
            try:
                admin.create_topics([topic], validate_only=True)["t"].result()
                answers.append((settings, ""))
            except KafkaException as refused:
                answers.append((settings, refused.args[0].str()))
    if request.config.getoption("--rewrite"):
        lines = ",\n".join(json.dumps(answer) for answer in answers)
        RECORDED.write_text(f"[\n{lines}\n]\n")
    assert [list(answer) for answer in answers] == json.loads(RECORDED.read_text())
