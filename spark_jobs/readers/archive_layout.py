"""The layout of an archive: names, manifests, and the chain that manifests make.

    archive.json                                  whose logs these are
    plan/<log>/<start>.json                       which ranges a job has set out to write
    manifest/<log>/<start>-<end>.log.json         a range that is archived: written last
    manifest/<log>/<start>-<end>.checkpoint.json  a checkpoint that stands in for a range
    data/<log>/record/<start>-<end>.avro          the range's records, undecoded: the envelope
    data/<log>/<table>/<start>-<end>.avro         those of one type, decoded (or .parquet)

Offsets are in the names, 20 digits, the end exclusive. So one listing of `manifest/` tells what
there is, and work that is done twice makes the same files.

A log's manifests make a *chain*: each begins where the one before ends, the first at 0. The
trap is its other link. Where offsets were gone before they could be archived, a checkpoint
stands in for everything up to its end; the records before it, back to the end of what is archived,
are lost, and the chain says so for ever.

Source: docs/design/pipeline.md#the-archive; the names follow Kafka's own of segments and
checkpoints.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple
from uuid import UUID

from spark_jobs.readers.logs import LogsError

FORMAT: Final = 1
ABOUT_KEY: Final = "archive.json"
MANIFESTS: Final = "manifest/"
ENVELOPE: Final = "record"
AVRO: Final = "avro"
PARQUET: Final = "parquet"

LOG: Final = "log"
CHECKPOINT: Final = "checkpoint"

_MANIFEST: Final = re.compile(
    r"manifest/([A-Za-z0-9_.-]+)/(\d{20})-(\d{20})\.(log|checkpoint)\.json", re.ASCII
)


class ArchiveError(LogsError):
    """An invalid archive. One sentence naming the fault."""


class DamagedArchiveError(ArchiveError):
    """An archived file is gone, or is not what was written."""


class Range(NamedTuple):
    """A link of a log's chain: offsets [start_offset, end_offset), or what stands in for them."""

    log: str
    start_offset: int
    end_offset: int
    kind: str  # LOG or CHECKPOINT

    @property
    def is_checkpoint(self) -> bool:
        """Return whether the range holds a checkpoint instead of the log's records."""
        return self.kind == CHECKPOINT

    @property
    def is_lost(self) -> bool:
        """Return whether the log deleted these offsets between two passes of the archive."""
        return self.is_checkpoint and self.start_offset > 0

    @property
    def stem(self) -> str:
        """Return the name that the range's files begin with."""
        offsets = f"{self.start_offset:020d}-{self.end_offset:020d}"
        return f"{offsets}.{CHECKPOINT}" if self.is_checkpoint else offsets

    @property
    def manifest_key(self) -> str:
        """Return the key of the range's manifest."""
        offsets = f"{self.start_offset:020d}-{self.end_offset:020d}"
        return f"{MANIFESTS}{self.log}/{offsets}.{self.kind}.json"

    @property
    def envelope_key(self) -> str:
        """Return the key of the file with all records of the range, undecoded."""
        return self.data_key(ENVELOPE, AVRO)

    def data_key(self, table: str, suffix: str) -> str:
        """Return the key of the file with the rows of one table."""
        return f"data/{self.log}/{table}/{self.stem}.{suffix}"


def plan_key(log: str, start_offset: int) -> str:
    """Return the key of the plan of archive ranges that begins at an offset."""
    return f"plan/{log}/{start_offset:020d}.json"


def parse_manifest_key(key: str) -> Range | None:
    """Parse a manifest's key into its range, or return None for any other key.

    >>> parse_manifest_key(Range("x-0", 0, 57, LOG).manifest_key)
    Range(log='x-0', start_offset=0, end_offset=57, kind='log')
    """
    match = _MANIFEST.fullmatch(key)
    if match is None or int(match[2]) >= int(match[3]):
        return None
    return Range(match[1], int(match[2]), int(match[3]), match[4])


def chain(ranges: Iterable[Range]) -> list[Range]:
    """Return the archived ranges that follow each other from offset 0 up to the first gap.

    Two jobs that ran at once may have left two links at one offset: the log is then preferred to a
    checkpoint, and less to more, so that all readers go the same way.

    >>> links = [(0, 5, LOG), (5, 9, CHECKPOINT), (9, 12, LOG), (13, 14, LOG)]
    >>> [one.end_offset for one in chain(Range("x-0", *link) for link in links)]
    [5, 9, 12]
    """
    begins: dict[int, Range] = {}
    for link in sorted(ranges, key=lambda link: (link.is_checkpoint, link.end_offset)):
        begins.setdefault(link.start_offset, link)
    links: list[Range] = []
    at = 0
    while at in begins:
        links.append(begins[at])
        at = begins[at].end_offset
    return links


# --- what is written down -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class About:
    """The cluster whose logs an archive holds. Written once."""

    cluster_id: str
    archive_id: UUID  # by which a quorum knows that it is read
    tables: str  # AVRO or PARQUET

    def to_json(self) -> bytes:
        """Encode the archive's description as the bytes of `archive.json`."""
        return _json(
            {
                "format": FORMAT,
                "cluster_id": self.cluster_id,
                "archive_id": str(self.archive_id),
                "tables": self.tables,
            }
        )

    @classmethod
    def from_json(cls, data: bytes) -> About:
        """Decode the archive's description from the bytes of `archive.json`.

        Raises:  ArchiveError.
        """
        found = _object(data, ABOUT_KEY)
        if found.get("format") != FORMAT:
            raise ArchiveError(
                f"{ABOUT_KEY} is of format {found.get('format')}; this code knows {FORMAT}"
            )
        try:
            if found["tables"] not in (AVRO, PARQUET):
                raise ValueError(f"tables as {found['tables']!r}")
            return cls(str(found["cluster_id"]), UUID(str(found["archive_id"])), found["tables"])
        except (KeyError, ValueError) as error:
            raise ArchiveError(f"{ABOUT_KEY}: {error}") from None


class Counted(NamedTuple):
    """The number of records of one type and version in a range."""

    type: int
    version: int
    name: str | None  # None: not known
    control: bool
    records: int
    kept_as_bytes: int  # of them: not decoded, in the envelope only


class Written(NamedTuple):
    """A file that was written for a range."""

    key: str
    table: str
    rows: int
    bytes: int
    sha256: str
    schema: str  # its fingerprint


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files archived for a range. A manifest is written after all of them."""

    cluster_id: str
    range: Range
    records: int
    batches: int
    first_timestamp_ms: int
    last_timestamp_ms: int
    last_epoch: int  # of its last record; of a checkpoint its own
    counts: tuple[Counted, ...]
    files: tuple[Written, ...]

    @property
    def envelope(self) -> Written:
        """Return the manifest's entry of the envelope, the file with every record of the range.

        Raises:  DamagedArchiveError.
        """
        for file in self.files:
            if file.table == ENVELOPE:
                return file
        raise DamagedArchiveError(f"{self.range.manifest_key} does not name an envelope")

    def to_json(self) -> bytes:
        """Encode the manifest of an archive range as JSON."""
        found = asdict(self)
        found["range"] = self.range._asdict()
        found["counts"] = [entry._asdict() for entry in self.counts]
        found["files"] = [entry._asdict() for entry in self.files]
        lost = [self.range.start_offset, self.range.end_offset] if self.range.is_lost else None
        return _json({"format": FORMAT, "lost_offsets": lost, **found})

    @classmethod
    def from_json(cls, data: bytes, key: str) -> Manifest:
        """Decode the manifest of an archive range from JSON.

        Raises:  DamagedArchiveError.
        """
        found = _object(data, key)
        try:
            return cls(
                cluster_id=found["cluster_id"],
                range=_range(found["range"]),
                records=int(found["records"]),
                batches=int(found["batches"]),
                first_timestamp_ms=int(found["first_timestamp_ms"]),
                last_timestamp_ms=int(found["last_timestamp_ms"]),
                last_epoch=int(found["last_epoch"]),
                counts=tuple(Counted(**entry) for entry in found["counts"]),
                files=tuple(_parse_written(entry) for entry in found["files"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedArchiveError(f"{key}: {error}") from None


def plan_to_json(ranges: Sequence[Range]) -> bytes:
    """Encode a plan, the consecutive archive ranges of one log that a pass is to write, as JSON."""
    return _json({"format": FORMAT, "ranges": [entry._asdict() for entry in ranges]})


def plan_from_json(data: bytes, key: str) -> list[Range]:
    """Decode a plan, consecutive archive ranges of one log, from JSON.

    Raises:  DamagedArchiveError.
    """
    try:
        return [_range(entry) for entry in _object(data, key)["ranges"]]
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedArchiveError(f"{key}: {error}") from None


def _range(found: Any) -> Range:
    """Decode and validate an archive range from a JSON object.

    Raises:  TypeError, ValueError.
    """
    parsed = Range(**found)
    offsets = (parsed.start_offset, parsed.end_offset)
    if not all(type(offset) is int for offset in offsets) or parsed.kind not in (LOG, CHECKPOINT):
        raise ValueError(f"{found} is not a range")
    if parse_manifest_key(parsed.manifest_key) != parsed:
        raise ValueError(f"{found} is not a range")
    return parsed


def _parse_written(found: Any) -> Written:
    """Decode and validate the entry of a written file from a JSON object.

    Raises:  TypeError, ValueError.
    """
    parsed = Written(**found)
    texts = (parsed.key, parsed.table, parsed.sha256, parsed.schema)
    if not all(isinstance(text, str) for text in texts) or not all(
        type(number) is int and number >= 0 for number in (parsed.rows, parsed.bytes)
    ):
        raise ValueError(f"{found} is not a file's entry")
    return parsed


def _json(found: Mapping[str, Any]) -> bytes:
    return json.dumps(found, indent=1).encode() + b"\n"


def _object(data: bytes, key: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedArchiveError(f"{key}: {error}") from None
    if not isinstance(found, dict):
        raise DamagedArchiveError(f"{key}: no object")
    return found
