"""An Iceberg table with progress: files and offsets in one commit, on a condition.

    table = IcebergTable(catalog, ("kafka", "orders"), RUN)
    table.create(columns, partition_by="day", start=Progress(...))
    table.take_over()
    table.commit(files, {0: 700, 1: 650}, newest_ms=None)

A commit names the snapshot that it was made on, and the catalogue refuses it if another is current.
Then the table is loaded again, and its progress tells whether this commit had landed, another tool
was faster, or another driver works here.

The trap: PyIceberg repeats a refused commit on the newer snapshot by itself, as is right for rows
that are new. Ours may be there already, so tables have that switched off, and a table that has not
is refused.

Source: docs/design/tables.md#the-commit-is-conditional; the Iceberg specification, optimistic
concurrency.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa
from pyarrow.fs import FileSelector, FileType
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.transforms import DayTransform, HourTransform, Transform
from pyiceberg.types import (
    BinaryType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from spark_jobs.topic_tables.progress import Progress, find_progress, new_driver

PartitionBy = Literal["none", "day", "hour"]

NO_RETRIES: Final = "commit.retry.num-retries"
ATTEMPTS: Final = 10
"""Times that a commit is made: each time another tool's commit may come between."""

PAUSE_S: Final = 0.1
DATA: Final = "data"

KEEP_SNAPSHOTS: Final = "history.expire.min-snapshots-to-keep"
EXPIRED_AT_ONCE: Final = 20
"""Snapshots that expire in one commit: each commit takes 1 or 2 ms for each that is there."""

PROPERTIES: Final[Mapping[str, str]] = {
    NO_RETRIES: "0",
    KEEP_SNAPSHOTS: "100",
    "commit.manifest-merge.enabled": "true",  # else each commit adds one to all that are read
    # A merge writes all entries of its manifests anew, in Python: 190 bytes and 0.3 ms for each.
    "commit.manifest.target-size-bytes": str(128 * 1024),
    "write.metadata.delete-after-commit.enabled": "true",  # of versions of the metadata file
    "write.metadata.previous-versions-max": "100",
}
"""Properties of tables that are made here."""

_HEADERS: Final = ListType(
    element_id=0,
    element=StructType(
        NestedField(0, "key", StringType()),
        NestedField(0, "value", BinaryType()),
    ),
    element_required=False,
)
_COLUMNS: Final[Mapping[str, IcebergType]] = {
    "key": BinaryType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestamptzType(),
    "headers": _HEADERS,
    "value": BinaryType(),
    "reason": StringType(),
}
_TRANSFORMS: Final[Mapping[str, Transform[Any, Any]]] = {
    "day": DayTransform(),
    "hour": HourTransform(),
}


class TableError(Exception):
    """A table cannot be used; the message says which, why, and what to do."""


class TakenOverError(TableError):
    """Another driver works on the table."""


class DataFile(NamedTuple):
    """A Parquet file that a task wrote."""

    path: str
    size_bytes: int
    rows: int


class IcebergTable:
    """One table of a catalogue, with the progress of one role in it."""

    def __init__(self, catalog: Catalog, name: tuple[str, ...], key: str) -> None:
        """Bind a table's name; nothing is read yet.

        Args:    key: `RUN` or `BACKFILL`.
        """
        self._catalog = catalog
        self._name = name
        self._key = key
        self._table: Table | None = None
        self._progress: Progress | None = None

    def __str__(self) -> str:
        return ".".join(self._name)

    @property
    def table(self) -> Table:
        """Return the table as it was loaded or committed last."""
        assert self._table is not None, f"{self} was not loaded"
        return self._table

    @property
    def progress(self) -> Progress:
        """Return the progress of this driver's last commit."""
        assert self._progress is not None, f"{self} has no progress"
        return self._progress

    @property
    def data_location(self) -> str:
        """Return the address of the directory for this driver's files."""
        return f"{self._data}/esker-{self.progress.driver}"

    @property
    def _data(self) -> str:
        return f"{self.table.location().rstrip('/')}/{DATA}"

    # --- loading --------------------------------------------------------------------------------

    def load(self) -> bool:
        """Load the table and its progress; return False if there is no table.

        Raises:  TableError; ProgressError.
        """
        try:
            self._table = self._catalog.load_table(self._name)
        except NoSuchTableError:
            return False
        self._progress = find_progress(self._key, self._table.properties, self._summaries())
        return True

    def create(
        self,
        columns: Sequence[str],
        *,
        partition_by: PartitionBy,
        start: Progress,
        properties: Mapping[str, str] = {},
    ) -> None:
        """Create the table with a progress; another process may have done so at the same time.

        Raises:  ProgressError.
        """
        ids = iter(range(1, 100))
        fields = [NestedField(next(ids), name, _with_ids(_COLUMNS[name], ids)) for name in columns]
        spec = PartitionSpec()
        if partition_by != "none":
            source = next(field.field_id for field in fields if field.name == "timestamp")
            transform = _TRANSFORMS[partition_by]
            spec = PartitionSpec(
                PartitionField(source, PARTITION_FIELD_ID_START, transform, partition_by)
            )
        self._catalog.create_namespace_if_not_exists(self._name[:-1])
        with suppress(TableAlreadyExistsError):
            self._catalog.create_table(
                self._name,
                Schema(*fields),
                partition_spec=spec,
                properties={**PROPERTIES, **properties, self._key: start.to_json()},
            )
        self.load()

    @property
    def partition_by(self) -> PartitionBy:
        """Return what the table is partitioned by.

        Raises:  TableError for anything that this job does not make.
        """
        fields = self.table.spec().fields
        if not fields:
            return "none"
        source = self.table.schema().find_field("timestamp").field_id
        for name, transform in _TRANSFORMS.items():
            if [(one.source_id, one.transform) for one in fields] == [(source, transform)]:
                return "day" if name == "day" else "hour"
        raise TableError(
            f"{self} is partitioned by {', '.join(str(one) for one in fields)}; this job writes "
            "tables that are partitioned by day or hour of timestamp, or not"
        )

    def check_ours(self) -> None:
        """Raise TableError unless commits to the table are safe."""
        retries = self.table.properties.get(NO_RETRIES)
        if retries != "0":
            raise TableError(
                f"{self}: the property {NO_RETRIES} is {retries or 'not set'}. PyIceberg would "
                "repeat commits by itself, which can write rows twice: set it to 0"
            )
        if self._progress is None:
            raise TableError(
                f"{self} has no property {self._key}: it was not made by this job, or lost its "
                "progress; name another table"
            )

    def _summaries(self) -> Iterator[Mapping[str, str] | None]:
        """Yield the summaries of the current snapshot and its ancestors, the newest first."""
        snapshots = {one.snapshot_id: one for one in self.table.metadata.snapshots}
        snapshot = self.table.current_snapshot()
        while snapshot is not None:
            summary = snapshot.summary
            yield None if summary is None else summary.additional_properties
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else snapshots.get(parent)

    # --- commits --------------------------------------------------------------------------------

    def take_over(self) -> Progress:
        """Make this process the driver of the table; return the progress that was there.

        Commits of former drivers are refused from here on. Their files that are in no commit are
        removed.

        Raises:  TableError; what the catalogue raises.
        """
        driver = new_driver()
        for _ in range(ATTEMPTS):
            self.load()
            self.check_ours()
            before = self.progress
            try:
                self._commit_once(replace(before, driver=driver, batch=0), ())
            except TakenOverError:
                continue  # another start was faster: the last one works
            self._remove_uncommitted(before)
            return before
        raise TakenOverError(f"{self}: other drivers take the table over all the time")

    def commit(
        self, files: Sequence[DataFile], offsets: Mapping[int, int], *, newest_ms: int | None
    ) -> None:
        """Add files to the table and set its progress, in one commit.

        Args:    offsets: of the partitions whose offset changes.
        Raises:  TakenOverError; TableError for a file that is not there; what the catalogue raises.
        """
        self._check_files(files)
        before = self.progress
        times = [one for one in (before.newest_ms, newest_ms) if one is not None]
        after = Progress(
            driver=before.driver,
            batch=before.batch + 1,
            offsets={**before.offsets, **offsets},
            newest_ms=max(times, default=None),
        )
        self._commit_once(after, [file.path for file in files])
        self._expire()

    def _expire(self) -> None:
        """Expire the oldest snapshots where a table has many; its rows stay as they are.

        Without a number of snapshots to keep in the table's properties, all stay.
        """
        keep = self.table.properties.get(KEEP_SNAPSHOTS, "")
        snapshots = self.table.metadata.snapshots
        if not keep.isdigit() or len(snapshots) < int(keep) + EXPIRED_AT_ONCE:
            return
        times = sorted(one.timestamp_ms for one in snapshots)
        oldest_kept = datetime.fromtimestamp(times[-max(1, int(keep))] / 1000, UTC)
        with suppress(CommitFailedException):  # somebody else commits: the next batch tries again
            # Not `by_ids`, which copies the metadata of the table twice for each id.
            self.table.maintenance.expire_snapshots().older_than(oldest_kept).commit()

    def _commit_once(self, after: Progress, paths: Sequence[str]) -> None:
        """Make a commit that lands exactly once, although its answer may be lost."""
        before = self.progress
        failure: Exception | None = None
        for attempt in range(ATTEMPTS):
            if failure is not None:
                time.sleep(PAUSE_S * attempt)
                self._reload()
                if self.progress.is_commit_of(after):
                    return
                if not self.progress.is_commit_of(before):
                    raise TakenOverError(
                        f"{self}: another driver ({self.progress.driver}) has taken the table over"
                    ) from failure
            try:
                self._append(after, paths)
            except (ValueError, TypeError):
                raise  # files do not fit the table: another attempt has the same answer
            except Exception as error:  # of any catalogue: the commit may have landed or not
                failure = error
            else:
                self._progress = after
                return
        self._reload()
        if not self.progress.is_commit_of(after):
            assert failure is not None, "attempts end by failures only"
            raise failure

    def _reload(self) -> None:
        """Load the table anew; the table of a failed commit is of no use."""
        if not self.load() or self._progress is None:
            raise TableError(f"{self}: the table, or its progress, was dropped meanwhile")

    def _append(self, after: Progress, paths: Sequence[str]) -> None:
        """Commit files and progress on the snapshot that is loaded."""
        text = after.to_json()
        with self.table.transaction() as transaction:
            transaction.set_properties({self._key: text})
            if paths:
                # Their names are new: comparing them with all that the table has is slow.
                transaction.add_files(
                    list(paths), snapshot_properties={self._key: text}, check_duplicate_files=False
                )
            else:
                _append_nothing(transaction, {self._key: text})

    def _check_files(self, files: Iterable[DataFile]) -> None:
        """Raise TableError for a file that this process does not see as its task wrote it."""
        for file in files:
            try:
                size = len(self.table.io.new_input(file.path))
            except FileNotFoundError:
                size = -1
            if size != file.size_bytes:
                raise TableError(
                    f"{file.path}: a task wrote {file.size_bytes} bytes, and the driver sees "
                    f"{'no such file' if size < 0 else f'{size} bytes'}: do all workers share this "
                    "directory? Nothing was committed"
                )

    def _remove_uncommitted(self, before: Progress) -> None:
        """Remove the files of a former driver that are in no commit, and never will be."""
        io = self.table.io
        if before.driver == self.progress.driver or not isinstance(io, PyArrowFileIO):
            return
        scheme, netloc, path = io.parse_location(f"{self._data}/esker-{before.driver}")
        files = io.fs_by_scheme(scheme, netloc)
        for info in files.get_file_info(FileSelector(path, allow_not_found=True)):
            number = info.base_name.partition("-")[0]
            if info.type == FileType.File and number.isdigit() and int(number) > before.batch:
                files.delete_file(info.path)

    # --- schema ---------------------------------------------------------------------------------

    @property
    def value_type(self) -> pa.DataType | None:
        """Return the Arrow type of the column `value`, or None while there is none."""
        schema = self.table.schema().as_arrow()
        index = schema.get_field_index("value")
        return None if index < 0 else plain_type(schema.field(index).type)

    def set_value_type(self, value_type: pa.DataType) -> None:
        """Add and widen columns until `value` has this type.

        Raises:  what the catalogue raises.
        """
        for attempt in range(ATTEMPTS):
            if self.value_type == value_type:
                return
            try:
                with self.table.update_schema() as update:
                    update.union_by_name(pa.schema([pa.field("value", value_type)]))
            except CommitFailedException:
                if attempt + 1 == ATTEMPTS:
                    raise
                before = self.progress
                self._reload()
                if not self.progress.is_commit_of(before):
                    raise TakenOverError(f"{self}: another driver works on the table") from None
        assert self.value_type == value_type, f"{self.value_type}, not {value_type}"


def _append_nothing(transaction: Transaction, summary: dict[str, str]) -> None:
    """Add a snapshot without files: only a snapshot has the condition of a commit."""
    with transaction.update_snapshot(snapshot_properties=summary).fast_append():
        pass


def _with_ids(kind: IcebergType, ids: Iterator[int]) -> IcebergType:
    """Return a type whose fields have ids of their own."""
    if isinstance(kind, ListType):
        return ListType(
            element_id=next(ids), element=_with_ids(kind.element_type, ids), element_required=False
        )
    if isinstance(kind, StructType):
        return StructType(
            *(
                NestedField(next(ids), one.name, _with_ids(one.field_type, ids))
                for one in kind.fields
            )
        )
    return kind


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return an Arrow type without field metadata and without large variants."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, plain_type(one.type)) for one in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", plain_type(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    return kind
