"""Compares `esker_records` with Spark's Kafka source, in a session such as a user starts.

python -m tests.spark_jobs.kafka_source_main JARS BOOTSTRAP STORE JSON

JSON is a list of the options of reads. For each one it prints a line with the number of rows of
both sources, and of the rows that only one of them has.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from spark_jobs.topics.records_source import EskerRecords


def main(jars: str, bootstrap: str, store: str, reads: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(str(path) for path in Path(jars).glob("*.jar")))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    spark.dataSource.register(EskerRecords)
    for options in json.loads(reads):
        both = {"kafka.bootstrap.servers": bootstrap, "includeHeaders": "true", **options}
        theirs = spark.read.format("kafka").options(**both).load()
        ours = spark.read.format("esker_records").options(**both, store=store).load()
        assert ours.columns == theirs.columns, f"{ours.columns} {theirs.columns}"
        assert [one.dataType for one in ours.schema] == [one.dataType for one in theirs.schema]
        counts = (
            ours.count(),
            theirs.count(),
            ours.exceptAll(theirs).count(),
            theirs.exceptAll(ours).count(),
        )
        print(json.dumps(counts), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
