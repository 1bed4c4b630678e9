"""`esker spark tables`: keeps topics as Iceberg tables, each record once.

`run` takes each table on from where it is, again and again or once; `describe` shows how far tables
are behind their topics; `backfill` adds what was before their begin; `compact` merges their small
files. The tables say where to go on: there is no checkpoint, and a run that was killed is simply
started again.

Source: docs/design/tables.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from esker.commands.base import CommandGroup, client_properties
from esker.commands.cluster_access import AsJson, Server, Target, TimeoutMs, ask, target
from esker.commands.spark.common import (
    ENVIRONMENT,
    INTERRUPTED,
    PARTLY,
    USAGE,
    EngineName,
    print_result,
    stop,
    stop_for_missing_package,
)
from esker.commands.spark.session import MEMORY, Debug, Master, Memory, SparkLog, spark_session
from esker.commands.spark.store import Endpoint, Region, StoreUri
from esker.commands.spark.tables_options import (
    NAMESPACE,
    CatalogProperty,
    CatalogUri,
    DirectoryUri,
    EngineOption,
    FormatOption,
    Interval,
    MaxRecords,
    MessageOption,
    MetricsPort,
    MinFiles,
    Namespace,
    OnBadRecord,
    OnBadRecordOption,
    Once,
    PartitionBy,
    PartitionByOption,
    RemoveAfterHours,
    SchemaFile,
    Schemas,
    SkipLost,
    Starting,
    StartingOption,
    TargetMib,
    Topics,
    ValueFormat,
    Warehouse,
)
from esker.commands.spark.tables_work import TablesWork, engine_of, has_ended, sentence
from esker.commands.text_tables import table
from records.rpc.configs import DescribeConfigsRequest, DescribeConfigsResponse

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from esker.commands.spark.tables_metrics import TablesMetrics
    from spark_jobs.readers.object_store import ObjectStore
    from spark_jobs.topic_tables.job import Job, JobSettings
    from spark_jobs.topic_tables.schemas import Values

app = CommandGroup(
    "Keep topics as Iceberg tables, each record once.",
    epilog="Example: esker spark tables describe orders --store esker-data/objects --warehouse "
    "lake",
)

_WHERE: Final = "--store esker-data/objects --warehouse lake"
RUN_EXAMPLE: Final = f"Example: esker spark tables run orders visits {_WHERE}"
DESCRIBE_EXAMPLE: Final = f"Example: esker spark tables describe orders {_WHERE}"

BACKFILL_EXAMPLE: Final = f"Example: esker spark tables backfill orders {_WHERE}"
COMPACT_EXAMPLE: Final = "Example: esker spark tables compact orders visits --warehouse lake"

_TOPIC: Final = 2  # resource type of a topic


@app.command(epilog=RUN_EXAMPLE)
def run(
    topics: Topics,
    store: StoreUri,
    endpoint: Endpoint = None,
    region: Region = None,
    bootstrap_server: Server = None,
    warehouse: Warehouse = None,
    catalog: CatalogUri = None,
    catalog_property: CatalogProperty = [],  # noqa: B006 (Typer's form)
    namespace: Namespace = NAMESPACE,
    directory: DirectoryUri = None,
    value_format: FormatOption = ValueFormat.RAW,
    schema_file: SchemaFile = None,
    message: MessageOption = None,
    schemas: Schemas = None,
    on_bad_record: OnBadRecordOption = OnBadRecord.DEAD_LETTER,
    once: Once = False,
    interval: Interval = 30.0,
    max_records: MaxRecords = 5_000_000,
    partition_by: PartitionByOption = PartitionBy.DAY,
    starting: StartingOption = Starting.EARLIEST,
    skip_lost: SkipLost = False,
    metrics_port: MetricsPort = None,
    engine: EngineOption = EngineName.LOCAL,
    master: Master = None,
    memory: Memory = MEMORY,
    spark_log: SparkLog = None,
    debug: Debug = False,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = 30_000,
) -> None:
    """Write the records of topics into tables or directories, each record once.

    A run may be killed at any time; the next one goes on from the last commit. Of several runs on
    one table the last one works, and the others stop.
    """
    values = _values(value_format, schema_file, message, schemas)
    _refuse_both(directory, warehouse or catalog)
    at = target(None, bootstrap_server)
    _refuse_compacted(at, topics, timeout_ms)
    made = _settings(
        at, store, endpoint, region, namespace, timeout_ms,
        partition_by=partition_by.value, starting=starting.value, max_records=max_records,
        skip_lost=skip_lost, on_bad_record=on_bad_record.value,
    )  # fmt: skip
    _keep(
        TablesWork(
            topics,
            _table_jobs(made, _open_catalog(warehouse, catalog, catalog_property), values)
            if directory is None
            else _directory_jobs(made, directory, endpoint, region, values),
            _serve_metrics(metrics_port),
            as_json=as_json,
        ),
        None if once else interval,
        _session(engine, master, memory, spark_log, debug=debug),
    )


@app.command(epilog=BACKFILL_EXAMPLE)
def backfill(
    topics: Topics,
    store: StoreUri,
    endpoint: Endpoint = None,
    region: Region = None,
    bootstrap_server: Server = None,
    warehouse: Warehouse = None,
    catalog: CatalogUri = None,
    catalog_property: CatalogProperty = [],  # noqa: B006 (Typer's form)
    namespace: Namespace = NAMESPACE,
    value_format: FormatOption = ValueFormat.RAW,
    schema_file: SchemaFile = None,
    message: MessageOption = None,
    schemas: Schemas = None,
    on_bad_record: OnBadRecordOption = OnBadRecord.DEAD_LETTER,
    max_records: MaxRecords = 5_000_000,
    engine: EngineOption = EngineName.LOCAL,
    master: Master = None,
    memory: Memory = MEMORY,
    spark_log: SparkLog = None,
    debug: Debug = False,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = 30_000,
) -> None:
    """Add the records from before the offsets at which tables began, the newest first.

    For tables that began at the latest offset. May run beside `run`; if interrupted, run the same
    command again.
    """
    values = _values(value_format, schema_file, message, schemas)
    at = target(None, bootstrap_server)
    _refuse_compacted(at, topics, timeout_ms)
    made = _settings(
        at, store, endpoint, region, namespace, timeout_ms,
        max_records=max_records, on_bad_record=on_bad_record.value,
    )  # fmt: skip
    _keep(
        TablesWork(
            topics,
            _table_jobs(
                made, _open_catalog(warehouse, catalog, catalog_property), values, backwards=True
            ),
            as_json=as_json,
            backwards=True,
        ),
        None,
        _session(engine, master, memory, spark_log, debug=debug),
    )


def _session(
    engine: EngineName, master: str | None, memory: str, spark_log: Path | None, *, debug: bool
) -> AbstractContextManager[Any]:
    if engine is EngineName.SPARK or master is not None:
        return spark_session("tables", master, memory, spark_log, debug=debug)
    return nullcontext()


def _keep(work: TablesWork, interval_s: float | None, session: AbstractContextManager[Any]) -> None:
    """Take tables on, and end the command with the exit code of what happened."""
    try:
        with session as spark:
            failed = work.loop(engine_of(spark), interval_s, lambda: has_ended(spark))
    except KeyboardInterrupt:
        stop("interrupted; run the same command to continue", INTERRUPTED)
    if failed:
        raise typer.Exit(PARTLY if len(failed) < len(work.topics) else ENVIRONMENT)


@app.command(epilog=DESCRIBE_EXAMPLE)
def describe(
    topics: Topics,
    store: StoreUri,
    endpoint: Endpoint = None,
    region: Region = None,
    bootstrap_server: Server = None,
    warehouse: Warehouse = None,
    catalog: CatalogUri = None,
    catalog_property: CatalogProperty = [],  # noqa: B006 (Typer's form)
    namespace: Namespace = NAMESPACE,
    directory: DirectoryUri = None,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = 30_000,
) -> None:
    """Show the tables of topics: rows, files, dead letters, and how far each is behind."""
    _refuse_both(directory, warehouse or catalog)
    at = target(None, bootstrap_server)
    made = _settings(at, store, endpoint, region, namespace, timeout_ms)
    from spark_jobs.topic_tables.describing import describe_directory, describe_table

    try:
        if directory is None:
            opened = _open_catalog(warehouse, catalog, catalog_property)
            found = [describe_table(opened, made, topic) for topic in topics]
        else:
            found = [
                describe_directory(_store_of(directory, topic, endpoint, region), made, topic)
                for topic in topics
            ]
    except (typer.Exit, typer.BadParameter):
        raise
    except Exception as error:  # of any catalogue
        stop(sentence(error), ENVIRONMENT)
    print_result(
        lambda: {"tables": [one._asdict() for one in found]},
        lambda: [table(_DESCRIBED, [one.cells() for one in found])],
        as_json=as_json,
    )


@app.command(epilog=COMPACT_EXAMPLE)
def compact(
    topics: Topics,
    warehouse: Warehouse = None,
    catalog: CatalogUri = None,
    catalog_property: CatalogProperty = [],  # noqa: B006 (Typer's form)
    namespace: Namespace = NAMESPACE,
    target_mib: TargetMib = 128,
    min_files: MinFiles = 5,
    remove_after_hours: RemoveAfterHours = 24.0,
    as_json: AsJson = False,
) -> None:
    """Merge small files of the tables of topics, and remove files that no snapshot has.

    May run beside `run`. Replaced files go once the snapshots that have them are expired.
    """
    try:
        from spark_jobs.topic_tables.compacting import CompactSettings
        from spark_jobs.topic_tables.compacting import compact as compact_table
        from spark_jobs.topic_tables.job import table_name
    except ModuleNotFoundError as error:
        stop_for_missing_package(error)
    opened = _open_catalog(warehouse, catalog, catalog_property)
    settings = CompactSettings(target_mib << 20, min_files, remove_after_hours * 3_600)
    found = []
    try:
        for topic in topics:
            name = (*namespace.split("."), table_name(topic))
            done = compact_table(opened, name, settings)
            found.append(
                {
                    "topic": topic,
                    "replaced_files": sum(one.files for one in done.replaced),
                    "new_files": len(done.replaced),
                    "rows": sum(one.rows for one in done.replaced),
                    "bytes_before": sum(one.bytes_before for one in done.replaced),
                    "bytes_after": sum(one.bytes_after for one in done.replaced),
                    "removed_files": done.removed,
                }
            )
    except KeyboardInterrupt:
        stop("interrupted; run the same command to continue", INTERRUPTED)
    except Exception as error:  # of any catalogue
        stop(sentence(error), ENVIRONMENT)
    print_result(
        lambda: {"tables": found},
        lambda: [table(_COMPACTED, [[str(one[key]) for key in one] for one in found])],
        as_json=as_json,
    )


_COMPACTED: Final = (
    "Topic", "ReplacedFiles", "NewFiles", "Rows", "BytesBefore", "BytesAfter", "RemovedFiles",
)  # fmt: skip
_DESCRIBED: Final = (
    "Topic", "Table", "Rows", "Files", "Bytes", "DeadLetters", "LagRecords", "LagSeconds",
)  # fmt: skip


# --- preparation ----------------------------------------------------------------------------------


def _settings(
    at: Target,
    store: str,
    endpoint: str | None,
    region: str | None,
    namespace: str,
    timeout_ms: int,
    *,
    skip_lost: bool = False,
    **of_run: Any,
) -> JobSettings:
    try:
        from spark_jobs.source.option_error import OptionError
        from spark_jobs.topic_tables.job import JobSettings, read_options
    except ModuleNotFoundError as error:
        stop_for_missing_package(error)
    source = {
        "kafka.bootstrap.servers": ",".join(f"{one.host}:{one.port}" for one in at.addresses),
        "store": store if "://" in store else str(Path(store).absolute()),
        "timeoutMs": str(timeout_ms),
        "failOnDataLoss": str(not skip_lost).lower(),
        **{f"kafka.{name}": text for name, text in client_properties().items()},
        **({} if endpoint is None else {"endpoint": endpoint}),
        **({} if region is None else {"region": region}),
    }
    try:
        read_options(source, "any")
    except OptionError as error:
        raise typer.BadParameter(str(error)) from None
    return JobSettings(source=source, namespace=tuple(namespace.split(".")), **of_run)


def _table_jobs(
    settings: JobSettings,
    catalog: Catalog,
    make_values: Callable[[], Values],
    *,
    backwards: bool = False,
) -> Callable[[str, Any], Job]:
    """Return what makes the job of a topic's table, on an engine."""
    from spark_jobs.topic_tables.job import TopicJob

    return lambda topic, engine: TopicJob(
        settings, topic, catalog, engine, make_values(), backwards
    )


def _directory_jobs(
    settings: JobSettings,
    directory: str,
    endpoint: str | None,
    region: str | None,
    make_values: Callable[[], Values],
) -> Callable[[str, Any], Job]:
    """Return what makes the job of a topic's directory, on an engine."""
    from spark_jobs.topic_tables.directory import DirectoryJob

    def make(topic: str, engine: Any) -> Job:
        store = _store_of(directory, topic, endpoint, region)
        return DirectoryJob(settings, topic, store, engine, make_values())

    return make


def _store_of(directory: str, topic: str, endpoint: str | None, region: str | None) -> ObjectStore:
    from spark_jobs.readers.object_store import StoreOptions, open_store

    place = f"{directory.rstrip('/')}/{topic}"
    try:
        if "://" not in directory:
            Path(place).mkdir(parents=True, exist_ok=True)
        return open_store(place, StoreOptions(endpoint, region))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--directory") from None
    except OSError as error:
        stop(f"{place}: {error.strerror}", ENVIRONMENT)


def _refuse_both(directory: str | None, tables: str | None) -> None:
    if directory is not None and tables is not None:
        raise typer.BadParameter(
            "--directory writes files without a catalogue: give it, or --warehouse and --catalog"
        )


def _open_catalog(warehouse: str | None, catalog: str | None, properties: Sequence[str]) -> Catalog:
    from spark_jobs.topic_tables.catalogs import CatalogError, open_catalog

    given = {}
    for text in properties:
        name, equals, value = text.partition("=")
        if not equals:
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--catalog-property")
        given[name] = value
    try:
        return open_catalog(warehouse, catalog, given)
    except CatalogError as error:
        stop(str(error), USAGE)
    except Exception as error:  # of any catalogue
        stop(f"the catalogue cannot be opened: {sentence(error)}", ENVIRONMENT)


def _refuse_compacted(at: Target, topics: Sequence[str], timeout_ms: int) -> None:
    """End the command if compaction may remove records of a topic that a table would keep."""
    resource = DescribeConfigsRequest.DescribeConfigsResource
    request = DescribeConfigsRequest(
        resources=tuple(
            resource(
                resource_type=_TOPIC, resource_name=name, configuration_keys=("cleanup.policy",)
            )
            for name in topics
        )
    )
    for result in ask(at, request, DescribeConfigsResponse, timeout_ms).results:
        if result.error_code:
            stop(f"{result.resource_name}: {result.error_message}", USAGE)
        if any("compact" in (setting.value or "") for setting in result.configs):
            stop(
                f"{result.resource_name} has cleanup.policy=compact: its newest record of a key "
                "replaces older ones, and a table that is appended to would keep them all",
                USAGE,
            )


def _serve_metrics(port: int | None) -> TablesMetrics | None:
    if port is None:
        return None
    from esker.commands.spark.tables_metrics import serve

    try:
        return serve(port)
    except OSError as error:
        stop(f"--metrics-port {port}: {error.strerror}", ENVIRONMENT)


def _values(
    kind: ValueFormat, schema_file: Path | None, message: str | None, schemas: str | None
) -> Callable[[], Values]:
    """Return what makes the values of a topic; end the command if options contradict each other."""
    needs_file = kind in (ValueFormat.AVRO, ValueFormat.PROTOBUF)
    for given, wanted, option in (
        (schema_file, needs_file, "--schema-file"),
        (message, kind is ValueFormat.PROTOBUF, "--message"),
        (schemas, kind is ValueFormat.CONFLUENT, "--schemas"),
    ):
        if given is None and wanted:
            raise typer.BadParameter(f"--format {kind.value} needs {option}")
        optional = option == "--schema-file" and kind is ValueFormat.JSON
        if given is not None and not wanted and not optional:
            raise typer.BadParameter(f"{option} has no meaning with --format {kind.value}")
    try:
        from spark_jobs.topic_tables import schemas as made
        from spark_jobs.topic_tables.registry import avro_schema, json_schema, open_schemas
        from spark_jobs.topic_tables.value_types import SchemaError
    except ModuleNotFoundError as error:
        stop_for_missing_package(error)
    try:
        data = b"" if schema_file is None else schema_file.read_bytes()
        if kind is ValueFormat.RAW:
            return made.RawValues
        if kind is ValueFormat.CONFLUENT:
            source = open_schemas(schemas or "")
            return lambda: made.NamedValues(source)
        if kind is ValueFormat.PROTOBUF:
            fixed = made.protobuf_values(data, message or "")
        elif kind is ValueFormat.AVRO:
            fixed = made.avro_values(avro_schema(data.decode()))
        elif schema_file is None:
            return made.InferredValues
        else:
            fixed = made.json_values(json_schema(data.decode()))
        return lambda: fixed
    except OSError as error:
        stop(f"{schema_file}: {error.strerror}", USAGE)
    except (SchemaError, UnicodeDecodeError) as error:
        stop(f"{schema_file or schemas}: {error}", USAGE)
