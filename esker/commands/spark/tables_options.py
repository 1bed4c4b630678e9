"""The options of `esker spark tables`: what a command line may say, with its help.

Source: docs/tables.md#keeping-topics-as-tables.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from esker.commands.spark.common import EngineName

NAMESPACE: Final = "kafka"


class PartitionBy(StrEnum):
    """What a table is partitioned by."""

    DAY = "day"
    HOUR = "hour"
    NONE = "none"


class ValueFormat(StrEnum):
    """How values are encoded."""

    RAW = "raw"
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"
    CONFLUENT = "confluent"


class OnBadRecord(StrEnum):
    """What happens to a record whose value cannot be decoded."""

    DEAD_LETTER = "dead-letter"
    FAIL = "fail"
    SKIP = "skip"


class Starting(StrEnum):
    """Where a new table begins."""

    EARLIEST = "earliest"
    LATEST = "latest"


Topics = Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Names of the topics.")]
Warehouse = Annotated[
    str | None,
    typer.Option(
        metavar="DIR|s3://BUCKET/PREFIX",
        help="Directory or s3://BUCKET/PREFIX where tables are made; all workers share a "
        "directory; default: the catalogue's own.",
    ),
]
DirectoryUri = Annotated[
    str | None,
    typer.Option(
        "--directory",
        metavar="DIR|s3://BUCKET/PREFIX",
        help="Instead of an Iceberg table: write plain Parquet files, below DIR/TOPIC; default: "
        "Iceberg tables.",
    ),
]
CatalogUri = Annotated[
    str | None,
    typer.Option(
        "--catalog",
        metavar="URI|NAME",
        help="Iceberg catalogue: http[s]://HOST:PORT (REST), the URL of a database such as "
        "sqlite:////var/lib/tables.db, or a name in PyIceberg's settings; default: a SQLite file "
        "in the warehouse.",
    ),
]
CatalogProperty = Annotated[
    list[str],
    typer.Option(
        "--catalog-property",
        metavar="NAME=VALUE",
        help="Setting of PyIceberg, such as s3.endpoint=http://HOST:9000; may be repeated; "
        "default: none.",
    ),
]
Namespace = Annotated[
    str,
    typer.Option(
        metavar="NAME[.NAME...]",
        help=f"Namespace of the tables in the catalogue; default: {NAMESPACE}.",
    ),
]
Once = Annotated[
    bool,
    typer.Option("--once", help="Stop when no record is missing; default: go on until Ctrl-C."),
]
Interval = Annotated[
    float,
    typer.Option(
        min=0.1,
        max=86_400,
        metavar="S",
        help="Time between two batches of a table that is not behind, in seconds; default: 30.",
    ),
]
MaxRecords = Annotated[
    int,
    typer.Option(
        min=1,
        metavar="COUNT",
        help="Number of records in one batch at most, which is one commit; default: 5000000.",
    ),
]
PartitionByOption = Annotated[
    PartitionBy,
    typer.Option(
        "--partition-by",
        help="Unit of time by which a new table is partitioned: day, hour or none; default: day.",
    ),
]
StartingOption = Annotated[
    Starting,
    typer.Option(
        help="Where a new table begins: earliest or latest; an existing table goes on from where "
        "it is; default: earliest."
    ),
]
FormatOption = Annotated[
    ValueFormat,
    typer.Option(
        "--format",
        help="Encoding of the values: raw, json, avro, protobuf, or confluent (each names its "
        "schema); default: raw.",
    ),
]
SchemaFile = Annotated[
    Path | None,
    typer.Option(
        "--schema-file",
        metavar="FILE",
        help="Schema of the values: an Avro schema, a JSON Schema, or a descriptor set that protoc "
        "wrote; default: JSON is inferred from the first batch.",
    ),
]
MessageOption = Annotated[
    str | None,
    typer.Option(
        "--message",
        metavar="NAME",
        help="Full name of the Protobuf message that values are; needed with --format protobuf.",
    ),
]
Schemas = Annotated[
    str | None,
    typer.Option(
        "--schemas",
        metavar="DIR|URL",
        help="Schemas by id, with --format confluent: the URL of a schema registry, or a directory "
        "of files such as 7.avsc, 7.json, 7.desc.",
    ),
]
OnBadRecordOption = Annotated[
    OnBadRecord,
    typer.Option(
        "--on-bad-record",
        help="What to do with a record whose value cannot be decoded: dead-letter (into the table "
        "TOPIC_dead_letters), fail or skip; default: dead-letter.",
    ),
]
SkipLost = Annotated[
    bool,
    typer.Option(
        "--skip-lost",
        help="Go on behind records that were deleted before they were read; default: stop.",
    ),
]
TargetMib = Annotated[
    int,
    typer.Option(
        min=1,
        max=1_024,
        metavar="MIB",
        help="Size of a compacted file at most, in MiB; files below half of it are small; "
        "default: 128.",
    ),
]
MinFiles = Annotated[
    int,
    typer.Option(
        min=2,
        metavar="COUNT",
        help="Number of small files of one day or hour from which on they are merged; default: 5.",
    ),
]
RemoveAfterHours = Annotated[
    float,
    typer.Option(
        min=1.0,
        metavar="HOURS",
        help="Age from which on a file that no snapshot has is removed, in hours; longer than any "
        "batch takes; default: 24.",
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=65_535,
        metavar="PORT",
        help="Port on which Prometheus reads the metrics of the tables; default: none.",
    ),
]
EngineOption = Annotated[
    EngineName,
    typer.Option(
        help="Engine that reads records and writes files: this process (local) or Spark (spark); "
        "default: local."
    ),
]
