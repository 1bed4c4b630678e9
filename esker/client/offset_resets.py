"""New offsets of an inactive consumer group: computed from a rule, checked, and committed.

    partitions = await existing_partitions(client, parse_topics(["orders:0,1", "events"]))
    plan = await plan_reset(client, group, partitions, Rule(To.TIMESTAMP, 1_700_000_000_000))
    await commit_reset(client, group, plan.offsets)

A rule may give an offset outside of a partition's log; it is moved to the log's start or end, with
a warning. Times without a zone are UTC.

Source: upstream's kafka-consumer-groups (GroupOffsetsResetter); KIP-122.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from coordinator.controller.client import error_codes
from esker.client.client import EARLIEST, LATEST, ClientError, KafkaClient
from esker.client.group_member import NAMED_VERSION, all_committed_offsets, commit_request
from records.kafka_errors import error_name
from records.rpc.groups import DescribeGroupsRequest, DescribeGroupsResponse, OffsetCommitResponse

TopicPartition = tuple[str, int]

INACTIVE: Final = ("Empty", "Dead")  # Dead is the state of a group that never existed, too

_DURATION: Final = re.compile(
    r"P(?:(?P<days>\d{1,9})D)?"
    r"(?:T(?=\d)(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?"
    r"(?:(?P<seconds>\d{1,9}(?:\.\d{1,9})?)S)?)?"
)


class To(StrEnum):
    """The rules by which a new offset is found; the value is the option of the command line."""

    EARLIEST = "--to-earliest"
    LATEST = "--to-latest"
    CURRENT = "--to-current"
    OFFSET = "--to-offset"
    SHIFT = "--shift-by"
    TIMESTAMP = "--to-datetime"
    FILE = "--from-file"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule with its offset, shift or timestamp (in ms), or with the offsets of a file."""

    to: To
    value: int = 0
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """The new and the committed offset of each partition, and warnings about offsets moved."""

    offsets: Mapping[TopicPartition, int]
    committed: Mapping[TopicPartition, int]
    warnings: tuple[str, ...]


# --- what a person types ------------------------------------------------------------------------


def parse_datetime(text: str) -> int:
    """Parse a date and time, by default in UTC, into ms since 1970. Raises ValueError.

    >>> parse_datetime("1970-01-01T00:00:01.500"), parse_datetime("1970-01-01T01:00:00.000+01:00")
    (1500, 0)
    """
    if "T" not in text:
        raise ValueError(f"{text!r} is not YYYY-MM-DDThh:mm:ss.sss, with or without Z or +hh:mm")
    try:
        moment = datetime.fromisoformat(text)
        return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is not YYYY-MM-DDThh:mm:ss.sss, with or without Z or +hh:mm"
        ) from None


def parse_duration(text: str) -> int:
    """Parse an ISO 8601 duration of days and smaller units into ms. Raises ValueError.

    >>> parse_duration("P1DT0.5S"), parse_duration("PT2H")
    (86400500, 7200000)
    """
    found = _DURATION.fullmatch(text)
    if found is None or text in ("P", ""):
        raise ValueError(f"{text!r} is not PnDTnHnMnS, for example P7D or PT1H30M")
    parts = {unit: float(number) for unit, number in found.groupdict(default="0").items()}
    try:
        return round(timedelta(**parts).total_seconds() * 1000)
    except OverflowError:
        raise ValueError(f"{text!r} is too long") from None


def parse_plan(text: str, group: str, *, of_several: bool = False) -> dict[TopicPartition, int]:
    """Parse a consumer group's offsets from CSV lines [group,]topic,partition,offset.

    Lines of other groups are left out, as by Kafka. Raises ValueError naming the line.

    Args:  of_several: the file is for several groups, so each line must name its group.

    >>> parse_plan("t,0,7", "g"), parse_plan("g,t,0,7\\nother,t,0,9", "g")
    ({('t', 0): 7}, {('t', 0): 7})
    """
    found: dict[TopicPartition, int] = {}
    try:
        lines = list(csv.reader(text.splitlines()))
    except csv.Error as error:
        raise ValueError(str(error)) from None
    for number, fields in enumerate(lines, 1):
        if not fields:
            continue
        if len(fields) not in (3, 4):
            raise ValueError(f"line {number}: not topic,partition,offset: {','.join(fields)[:80]}")
        *owner, topic, partition, offset = (field.strip() for field in fields)
        if of_several and not owner:
            raise ValueError(f"line {number}: not group,topic,partition,offset, for several groups")
        if owner and owner != [group]:
            continue
        if not all(re.fullmatch(r"[0-9]{1,18}", one) for one in (partition, offset)):
            raise ValueError(f"line {number}: partition and offset are not numbers")
        if (topic, int(partition)) in found:
            raise ValueError(f"line {number}: {topic}-{partition} is there twice")
        found[topic, int(partition)] = int(offset)
    if not found:
        raise ValueError(f"No reset plan for group {group} found.")
    return found


def parse_topics(texts: Iterable[str]) -> dict[str, tuple[int, ...] | None]:
    """Return the partitions of each topic in texts `topic` (None: all) or `topic:0,1`.

    >>> parse_topics(["a:0,2", "b"])
    {'a': (0, 2), 'b': None}
    """
    found: dict[str, tuple[int, ...] | None] = {}
    for text in texts:
        topic, colon, numbers = text.partition(":")
        parts = numbers.split(",") if colon else []
        if not topic or not all(re.fullmatch(r"[0-9]{1,9}", part) for part in parts):
            raise ValueError(f"{text!r} is neither TOPIC nor TOPIC:PARTITION,...")
        if topic in found:
            raise ValueError(f"{topic} is given twice")
        found[topic] = tuple(map(int, parts)) if colon else None
    return found


# --- what the cluster is asked ------------------------------------------------------------------


async def require_inactive(client: KafkaClient, group: str) -> None:
    """Raise ClientError, with Kafka's message, if the consumer group has members."""

    async def attempt() -> str:
        node = await client.group_coordinator(group)
        request = DescribeGroupsRequest(groups=(group,))
        (found,) = (await client.ask(node, request, DescribeGroupsResponse)).groups
        if found.error_code and found.group_state not in INACTIVE:
            raise ClientError(f"group {group}: {error_name(found.error_code)}", found.error_code)
        return found.group_state

    state = await client.patiently(attempt)
    if state not in INACTIVE:
        raise ClientError(
            f"Assignments can only be reset if the group '{group}' is inactive, "
            f"but the current state is {state}. Stop its members first"
        )


async def is_resettable(client: KafkaClient, group: str, *, all_topics: bool) -> bool:
    """Return whether a consumer group is empty and, if `all_topics`, has a committed offset."""
    try:
        await require_inactive(client, group)
    except ClientError as error:
        if error.code:
            raise
        return False
    return not all_topics or bool(await all_committed_offsets(client, group, None))


async def existing_partitions(
    client: KafkaClient, topics: Mapping[str, tuple[int, ...] | None]
) -> list[TopicPartition]:
    """Return the partitions that `topics` names; None stands for all partitions of a topic.

    Raises ClientError if a named partition does not exist.
    """
    found, missing = [], []
    for topic, wanted in topics.items():
        existing = await client.leaders(topic)
        found += [(topic, partition) for partition in (existing if wanted is None else wanted)]
        missing += [f"{topic}-{one}" for one in wanted or () if one not in existing]
    if missing:
        raise ClientError(f'The partitions "{",".join(missing)}" do not exist')
    return found


async def plan_reset(
    client: KafkaClient, group: str, partitions: Iterable[TopicPartition] | None, rule: Rule
) -> Plan:
    """Find each partition's new offset; None means all partitions with a committed offset.

    Raises ClientError.
    """
    committed = await all_committed_offsets(client, group, None)
    chosen = list(committed if partitions is None else partitions)
    if not chosen:
        raise ClientError(f"group {group} has no committed offsets: name partitions by --topic")
    if rule.to is To.EARLIEST or rule.to is To.LATEST:
        timestamp = EARLIEST if rule.to is To.EARLIEST else LATEST
        return Plan(await _offsets(client, chosen, timestamp), committed, ())
    if rule.to is To.TIMESTAMP:
        return await _plan_by_time(client, chosen, committed, rule.value)
    if rule.to is To.CURRENT:
        unset = [one for one in chosen if one not in committed]
        ends = await _offsets(client, unset, LATEST)
        return Plan({one: committed.get(one, ends.get(one, 0)) for one in chosen}, committed, ())
    wanted = {}
    for topic, partition in chosen:
        key = (topic, partition)
        if rule.to is To.SHIFT and key not in committed:
            raise ClientError(
                f"Cannot shift offset for partition {topic}-{partition} since there is no current "
                "committed offset"
            )
        at = rule.value if rule.to is To.OFFSET else rule.offsets.get(key, 0)
        wanted[key] = committed[key] + rule.value if rule.to is To.SHIFT else at
    return await _plan_within_logs(client, wanted, committed)


async def _plan_by_time(
    client: KafkaClient,
    partitions: list[TopicPartition],
    committed: Mapping[TopicPartition, int],
    timestamp_ms: int,
) -> Plan:
    """Plan the offset of the first record at or after a time, or else the end offset."""
    found = await _offsets(client, partitions, timestamp_ms)
    unset = [one for one in partitions if found[one] < 0]
    ends = await _offsets(client, unset, LATEST)
    warnings = tuple(
        f"{topic}-{partition} has no record at or after that time: its end offset is taken"
        for topic, partition in unset
    )
    return Plan(found | ends, committed, warnings)


async def _plan_within_logs(
    client: KafkaClient,
    wanted: Mapping[TopicPartition, int],
    committed: Mapping[TopicPartition, int],
) -> Plan:
    """Plan the wanted offsets, each limited to its log's start and end offset."""
    first = await _offsets(client, wanted, EARLIEST)
    ends = await _offsets(client, wanted, LATEST)
    offsets, warnings = {}, []
    for key, offset in wanted.items():
        offsets[key] = min(max(offset, first[key]), ends[key])
        if offsets[key] != offset:
            which = "higher than latest" if offset > ends[key] else "lower than earliest"
            warnings.append(
                f"New offset ({offset}) is {which} offset for topic partition {key[0]}-{key[1]}. "
                f"Value will be set to {offsets[key]}."
            )
    return Plan(offsets, committed, tuple(warnings))


async def _offsets(
    client: KafkaClient, partitions: Iterable[TopicPartition], timestamp: int
) -> dict[TopicPartition, int]:
    by_topic: dict[str, dict[int, int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, {})[partition] = timestamp
    return {
        (topic, partition): offset
        for topic, wanted in by_topic.items()
        for partition, offset in (await client.offsets(topic, wanted)).items()
    }


async def commit_reset(
    client: KafkaClient, group: str, offsets: Mapping[TopicPartition, int]
) -> None:
    """Commit new offsets for a consumer group without members. Raises ClientError."""

    async def attempt() -> None:
        node = await client.group_coordinator(group)
        request = commit_request(group, offsets)
        answer = await client.ask(node, request, OffsetCommitResponse, most=NAMED_VERSION)
        for code in sorted(error_codes(answer) - {0}):
            raise ClientError(f"group {group}: {error_name(code)}", code)

    await client.patiently(attempt)
