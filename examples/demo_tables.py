"""The demo's last words on records: a topic as an Iceberg table, which needs no Kafka to be read.

`esker spark tables` reads the topic from the object store and keeps it as a table. It runs twice,
to show that the second run adds nothing. Then DuckDB and Spark ask the table, and the answers are
compared with the lines that were written. Spark reads the files of the table's snapshot: it takes
no Iceberg jar with it.
"""

from __future__ import annotations

import json
from typing import Any

import duckdb

from examples.demo_clients import Lines
from examples.demo_cluster import Cluster
from examples.demo_saying import claim, command, quiet
from spark_jobs.session.spark_session import session
from spark_jobs.topic_tables.catalogs import open_catalog

LAKE = "esker-data/lake"
QUESTION = (
    "SELECT count(*), count(DISTINCT (partition, offset)), sum(octet_length(value)) FROM lines"
)


def keep_as_table(cluster: Cluster, topic: str, lines: Lines) -> None:
    """Write a topic into an Iceberg table, and ask the table by DuckDB and by Spark."""
    expected = sum(map(len, lines.values()))
    size = sum(len(line) for some in lines.values() for line in some)
    lake = cluster.directory / "lake"
    words = ("spark", "tables", "run", topic, "--once")
    command(f"esker {' '.join(words)} --store esker-data/objects --warehouse {LAKE}")
    places = ("--store", str(cluster.directory / "objects"), "--warehouse", str(lake))
    steps = [json.loads(line) for line in cluster.run(*words, *places, "--json").splitlines()]
    claim(
        f"{sum(step['rows'] for step in steps):,} rows in the Iceberg table kafka.{topic}, "
        f"{len(steps)} commit, {steps[-1]['lag']['records']} records behind",
        holds=sum(step["rows"] for step in steps) == expected,
    )
    claim("a second run finds nothing to add", holds=cluster.run(*words, *places) == "")
    table = open_catalog(str(lake), None, {}).load_table(("kafka", topic))
    files = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
    answers: dict[str, Any] = {}
    question = QUESTION.replace("lines", f"read_parquet({files})")
    question = question.replace(", offset", ', "offset"')
    answers["DuckDB"] = duckdb.sql(question).fetchall()[0]
    with session(app="demo", log_file=cluster.directory / "spark-query.log") as spark:
        spark.read.parquet(*files).createOrReplaceTempView("lines")
        answers["Spark"] = tuple(spark.sql(QUESTION).collect()[0])
    for name, answer in answers.items():
        quiet(f"{name}: {QUESTION}: {', '.join(f'{int(one):,}' for one in answer)}")
    claim(
        "DuckDB and Spark find every line once, and the bytes that were written",
        holds=set(answers.values()) == {(expected, expected, size)},
    )
