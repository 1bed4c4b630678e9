"""Topics and their settings at an offset of the cluster log.

    topics = topics_at(LogFiles(directory / "__cluster_metadata-0"), 5_120)
    topics[topic_id].retention_ms

A setting is the topic's own, or the cluster's default for all topics, or the built-in one. Metadata
transactions count as a whole: changes of an unfinished or aborted one are left out.

Source: KIP-631 (TopicRecord, ConfigRecord), KIP-868 (transactions);
docs/design/batch-coordinator.md#retention.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from records.frame import METADATA_RECORDS, decode_record, read_frame
from records.metadata import (
    ConfigRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from records.schema import MetadataRecord
from records.uuids import encode_uuid
from spark_jobs.readers.log_position import LogPosition
from spark_jobs.readers.logs import Log, LogsError, Span
from spark_jobs.tables.transactions import MARKS, effective_records

TOPIC: Final = 2  # ConfigRecord's resource types
BROKER: Final = 4
EVERY_BROKER: Final = ""  # the resource name of cluster-wide defaults

WEEK_MS: Final = 7 * 24 * 3600 * 1000
UNLIMITED: Final = -1
COORDINATOR, EXTERNAL, BOTH = "coordinator", "external", "both"

_DEFAULTS: Final = {
    "cleanup.policy": ("log.cleanup.policy", "delete"),
    "retention.ms": ("log.retention.ms", str(WEEK_MS)),
    "retention.bytes": ("log.retention.bytes", str(UNLIMITED)),
    "esker.retention.enforcer": ("esker.retention.enforcer", COORDINATOR),
}
"""Setting: what the cluster-wide default is called, and what holds without one; as the controller's
own (`coordinator.controller.config_defs`), which tests compare."""

_READ: Final = {
    record.schema().key for record in (TopicRecord, RemoveTopicRecord, ConfigRecord, *MARKS)
}


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """The retention settings of a topic: no limits unless its policy contains `delete`."""

    name: str
    retention_ms: int  # -1: no limit
    retention_bytes: int  # of each partition; -1: no limit
    enforcer: str  # coordinator, external or both


def topics_at(log: Log, offset: int) -> dict[str, TopicSettings]:
    """Return the settings of every topic by its id, from the records below an offset.

    Raises:  LogsError for a record of an unknown type; LostRangeError; as `read_values`.
    """
    return topics_of(log.spans(offset), must_know=True)


def topics_of(spans: Iterable[Span], *, must_know: bool = False) -> dict[str, TopicSettings]:
    """Return the settings of every topic from consecutive spans.

    Args:    must_know: a record of an unknown type is an error; else it is passed over.
    """
    names: dict[str, str] = {}
    settings: dict[tuple[int, str, str], str] = {}
    for _, record in effective_records(_records(spans, must_know)):
        match record:
            case TopicRecord(name=name, topic_id=topic_id):
                names[encode_uuid(topic_id)] = name
            case RemoveTopicRecord(topic_id=topic_id):
                gone = names.pop(encode_uuid(topic_id), None)
                for key in [key for key in settings if key[:2] == (TOPIC, gone)]:
                    del settings[key]
            case ConfigRecord(resource_type=kind, resource_name=resource, name=name, value=value):
                if value is None:
                    settings.pop((kind, resource, name), None)
                else:
                    settings[kind, resource, name] = value
    return {topic_id: _settings(name, settings) for topic_id, name in names.items()}


def _records(
    spans: Iterable[Span], must_know: bool
) -> Iterator[tuple[LogPosition, MetadataRecord]]:
    for span in spans:
        for position, value in span.values():
            key = read_frame(value)[0]
            if key in _READ:
                yield position, decode_record(value)
            elif must_know and key not in METADATA_RECORDS:
                raise LogsError(
                    f"at offset {position.offset} of the cluster's log is a record of type {key}, "
                    "which this version does not know: it may be a setting; use a newer one"
                )


def _settings(topic: str, settings: Mapping[tuple[int, str, str], str]) -> TopicSettings:
    def value(name: str) -> Any:
        default_name, built_in = _DEFAULTS[name]
        found = settings.get((TOPIC, topic, name))
        if found is None:
            found = settings.get((BROKER, EVERY_BROKER, default_name))
        return built_in if found is None else found

    is_deleted = "delete" in [item.strip() for item in value("cleanup.policy").split(",")]
    return TopicSettings(
        topic,
        int(value("retention.ms")) if is_deleted else UNLIMITED,
        max(int(value("retention.bytes")), UNLIMITED) if is_deleted else UNLIMITED,
        value("esker.retention.enforcer"),
    )
