"""Tables of decoded values: dead letters, and schemas that change while a table grows.

Source: docs/design/tables.md#dead-letters, #schemas.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.topic_tables.iceberg_table import IcebergTable
from spark_jobs.topic_tables.job import JobError, TopicJob, is_lasting
from spark_jobs.topic_tables.registry import SchemaDirectory, json_schema
from spark_jobs.topic_tables.schemas import InferredValues, NamedValues, Values, json_values
from spark_jobs.topic_tables.value_types import SchemaError
from tests.spark_jobs.test_topic_table_values import avro, confluent, record
from tests.spark_jobs.test_topic_tables import DiedError, to_end
from tests.spark_jobs.topic_tables_world import TOPIC, TablesWorld, tables_world

__all__ = ["tables_world"]

LETTERS = f"{TOPIC}_dead_letters"
GOOD = [(0, 0, {"a": 1}), (0, 2, {"a": 3}), (1, 0, None)]
BAD = [(0, 1, b"no")]


def schema(**fields: str) -> Values:
    """Return JSON values of fields with these types."""
    named = {name: {"type": kind} for name, kind in fields.items()}
    return json_values(json_schema(json.dumps({"properties": named})))


@pytest.fixture
def world(tables_world: TablesWorld) -> TablesWorld:
    """A topic of three good records and a bad one."""
    tables_world.topic.write(0, b'{"a": 1}', b"no", b'{"a": 3}')
    tables_world.topic.write(1, None)
    return tables_world


def test_each_record_is_in_the_table_or_in_the_dead_letters(world: TablesWorld) -> None:
    job = world.started(schema(a="integer"))
    step = job.step()
    assert (step.rows, step.bad) == (3, 1)
    assert (step.first_bad or "").startswith("partition 0, offset 1: not of its JSON type")
    to_end(job)
    assert (world.rows(), world.rows(LETTERS)) == (GOOD, BAD)
    letters = world.catalog.load_table(("kafka", LETTERS)).scan().to_arrow().to_pylist()
    assert letters[0]["reason"].startswith("not of its JSON type")
    assert letters[0]["key"] == b"k"


def test_a_bad_record_stops_its_topic_or_is_left_out_if_so_asked(world: TablesWorld) -> None:
    failing = world.started(schema(a="integer"), on_bad_record="fail")
    with pytest.raises(JobError, match="1 bad records, the first at partition 0, offset 1"):
        failing.step()
    assert world.rows() == []
    assert not list((world.home / "lake").rglob("esker-*/*.parquet"))
    skipping = world.started(schema(a="integer"), on_bad_record="skip")
    to_end(skipping)
    assert world.rows() == GOOD
    assert not world.catalog.table_exists(("kafka", LETTERS))


def die_before_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commits of dead letters land, and those of rows not."""
    commit = IcebergTable.commit

    def commit_letters(self: IcebergTable, *arguments: Any, **named: Any) -> None:
        if not str(self).endswith(LETTERS):
            raise DiedError
        commit(self, *arguments, **named)

    monkeypatch.setattr(IcebergTable, "commit", commit_letters)


def test_a_driver_that_dies_between_its_two_commits_repeats_no_dead_letter(
    world: TablesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.started(schema(a="integer"))
    with monkeypatch.context() as patched:
        die_before_rows(patched)
        with pytest.raises(DiedError):
            job.step()
    assert (world.rows(), world.rows(LETTERS)) == ([], BAD)
    to_end(world.started(schema(a="integer")))
    assert (world.rows(), world.rows(LETTERS)) == (GOOD, BAD)


def test_a_record_that_went_to_the_dead_letters_stays_there_if_its_schema_comes_later(
    world: TablesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the rule the record would be in both tables."""
    world.topic.write(1, b'{"a": 1, "more": "x"}')
    job = world.started(schema(a="integer"))
    with monkeypatch.context() as patched:
        die_before_rows(patched)
        with pytest.raises(DiedError):
            job.step()
    again = world.started(schema(a="integer", more="string"))
    assert again.skip == {(0, 1), (1, 1)}
    to_end(again)
    assert again.skip == frozenset()
    assert [row[:2] for row in world.rows()] == [(0, 0), (0, 2), (1, 0)]
    assert [row[:2] for row in world.rows(LETTERS)] == [(0, 1), (1, 1)]


def test_a_zombie_writes_no_dead_letters(world: TablesWorld) -> None:
    zombie = world.started(schema(a="integer"))
    world.started(schema(a="integer"))
    with pytest.raises(Exception, match="another driver"):
        zombie.step()
    assert world.rows(LETTERS) == []


def test_inferred_columns_stay_and_a_schema_adds_to_them(world: TablesWorld) -> None:
    to_end(world.started(InferredValues()))
    world.topic.write(1, b'{"a": 4, "b": "x"}')
    to_end(world.started(InferredValues()))
    assert (world.rows(), world.rows(LETTERS)) == (GOOD, [*BAD, (1, 1, b'{"a": 4, "b": "x"}')])
    world.topic.write(1, b'{"a": 5, "b": "y"}')
    to_end(world.started(schema(a="integer", b="string")))
    assert world.rows()[-1] == (1, 2, {"a": 5, "b": "y"})
    assert world.rows()[0] == (0, 0, {"a": 1, "b": None})


def test_a_table_whose_values_have_no_schema_yet_has_no_column_for_them(
    tables_world: TablesWorld,
) -> None:
    tables_world.topic.write(0, None, b"[]")
    job = tables_world.started(InferredValues())
    to_end(job)
    assert tables_world.rows() == [(0, 0, None)]
    tables_world.topic.write(0, b'{"a": 1}')
    to_end(job)
    assert tables_world.rows() == [(0, 0, None), (0, 2, {"a": 1})]


def test_schemas_that_values_name_change_the_table_and_an_impossible_one_stops_it(
    tables_world: TablesWorld, tmp_path: Path
) -> None:
    world, first = tables_world, record(("a", "int"))
    second = record(("a", "long"), ("b", ["null", "string"]))
    third = record(("a", "string"))
    for number, text in enumerate((first, second, third), 1):
        (tmp_path / f"{number}.avsc").write_text(text)
    values = NamedValues(SchemaDirectory(tmp_path))
    world.topic.write(0, confluent(1, avro(first, {"a": 1})))
    job = world.started(values)
    to_end(job)
    world.topic.write(0, confluent(2, avro(second, {"a": 1 << 40, "b": "x"})))
    world.topic.write(1, confluent(1, avro(first, {"a": 2})))
    to_end(job)
    expected = [
        (0, 0, {"a": 1, "b": None}), (0, 1, {"a": 1 << 40, "b": "x"}), (1, 0, {"a": 2, "b": None}),
    ]  # fmt: skip
    assert world.rows() == expected
    world.topic.write(0, confluent(3, avro(third, {"a": "text"})))
    for again in (job, world.started(NamedValues(SchemaDirectory(tmp_path)))):
        with pytest.raises(SchemaError, match=r"schema 3: value\.a is int64 in the table") as told:
            again.step()
        assert is_lasting(told.value), "a loop of attempts would mend nothing"
    assert world.rows() == expected
    assert len(list((world.home / "lake" / "kafka" / TOPIC).rglob("esker-*/*.parquet"))) == 2


def test_a_table_of_raw_values_is_not_taken_for_one_of_decoded_values(world: TablesWorld) -> None:
    world.started()
    with pytest.raises(JobError, match="its values are raw"):
        world.started(schema(a="integer"))


def test_a_batch_without_bad_records_commits_no_dead_letters(tables_world: TablesWorld) -> None:
    tables_world.topic.write(0, b'{"a": 1}')
    job: TopicJob = tables_world.started(schema(a="integer"))
    to_end(job)
    assert job.letters is not None
    assert job.letters.progress.batch == 0
