"""Describes a prepared restore: what is recovered, what is lost, what nobody can know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from esker.commands.text_tables import table
from esker.restore.appending import Appended
from esker.restore.plan import ChosenLog
from esker.restore.run import Prepared
from esker.restore.tail import Tail

SHOWN = 20  # lines of one kind in the table; JSON has all of them


def report(prepared: Prepared) -> dict[str, Any]:
    """Return the plan as one JSON object."""
    restored, choices = prepared.restored, prepared.choices
    return {
        "lostClusterId": choices.cluster_id,
        "timeline": restored.timeline,
        "leaderEpoch": restored.jump.leader_epoch,
        "backup": None if prepared.manifest is None else prepared.manifest.number,
        "logs": [_log(prepared, log) for log in choices.logs.values()],
        "topics": restored.topics,
        "partitions": restored.partitions,
        "records": restored.records,
        "objects": sum(map(len, restored.objects.values())),
        "uncertainPartitions": [
            {"topic": topic, "partition": index, "exactEnd": exact, "endOffset": end}
            for topic, index, exact, end in restored.uncertain
        ],
        "recoveredTopics": restored.adopted,
        "emptiedPartitions": restored.emptied,
        "lostGroupOffsets": [
            {
                "group": lost.group_id,
                "topic": lost.topic,
                "partition": lost.partition,
                "committedOffset": lost.committed,
                "offset": lost.now,
            }
            for lost in restored.lost_offsets
        ],
        "tail": None if prepared.tail is None else _tail(prepared.tail, restored.appended),
        "notes": list(choices.notes),
    }


def _log(prepared: Prepared, log: ChosenLog) -> dict[str, Any]:
    choice = log.choice
    return {
        "log": log.group.name,
        "directory": prepared.name_of(choice.chosen.directory),
        "lastEpoch": choice.chosen.last_epoch,
        "endOffset": choice.chosen.end,
        "knownCommitted": log.known_committed,
        "lostRecords": choice.lost,
        "doubtfulRecords": log.doubtful,
        "others": [
            {
                "directory": prepared.name_of(other.log.directory),
                "endOffset": other.log.end,
                "commonEnd": other.common_end,
                "droppedRecords": other.dropped,
                "doubtfulRecords": other.doubtful,
            }
            for other in choice.others
        ],
    }


def _tail(tail: Tail, appended: Appended) -> dict[str, Any]:
    return {
        "objects": appended.objects,
        "records": appended.records,
        "duplicateRecords": appended.duplicates,
        "partitions": [
            {"topic": topic, "partition": index, "firstOffset": first, "endOffset": end}
            for (topic, index), (first, end) in sorted(appended.partitions.items())
        ],
        "leftOut": [
            {
                "coordinator": one.coordinator,
                "objectId": one.object_id,
                "topic": one.topic,
                "partition": one.partition,
                "records": one.records,
                "reason": one.reason,
            }
            for one in appended.left_out
        ],
        "rewrittenObjects": tail.rewritten,
        "damagedObjects": tail.damaged,
    }


def describe(prepared: Prepared) -> str:
    """Return the plan as text for people."""
    restored, choices = prepared.restored, prepared.choices
    logs = table(
        ("LOG", "FROM", "END", "KNOWN-COMMITTED", "LOST", "DOUBTFUL"),
        [
            (
                log.group.name,
                prepared.name_of(log.choice.chosen.directory.parent),
                str(log.choice.chosen.end),
                str(log.known_committed),
                str(log.choice.lost),
                str(log.doubtful),
            )
            for log in choices.logs.values()
        ],
    )
    lines = [
        f"Restore of cluster {choices.cluster_id}, timeline {restored.timeline}. This is UNSAFE: "
        "records that no source has are lost and cannot be counted.",
        logs,
        f"{restored.topics} topics, {restored.partitions} partitions, {restored.records} records "
        f"in {sum(map(len, restored.objects.values()))} objects.",
        *_some(
            "Records that may differ from those of the lost cluster; their leader epoch is "
            f"{restored.timeline}:",
            (f"{t}-{p}: offsets {exact} to {end - 1}" for t, p, exact, end in restored.uncertain),
        ),
        *_some(
            "Topics that the cluster log does not have, recovered from a batch coordinator:",
            iter(restored.adopted),
        ),
        *_some("Partitions whose batches no source has, now empty:", iter(restored.emptied)),
        *_some(
            "Offsets of groups that go back:",
            (
                f"{one.group_id}: {one.topic}-{one.partition} from {one.committed} to {one.now}"
                for one in restored.lost_offsets
            ),
        ),
        *([] if prepared.tail is None else _describe_tail(prepared.tail, restored.appended)),
        *_some("Copies that are damaged or cannot be used:", iter(choices.notes)),
        "Rights that were revoked after the newest record are back: check ACLs and users, and "
        "change secrets.",
    ]
    return "\n".join(lines)


def _describe_tail(tail: Tail, appended: Appended) -> list[str]:
    """Return lines about what the tail adds, and about what is left out of it."""
    return [
        f"The tail adds {appended.records} records of {appended.objects} objects; "
        f"{appended.duplicates} records of it are there already.",
        *_some(
            "Records of the tail:",
            (
                f"{topic}-{index}: offsets {first} to {end - 1}"
                for (topic, index), (first, end) in sorted(appended.partitions.items())
            ),
        ),
        *_some(
            "Records of the tail that are left out, and stay in the store:",
            (
                f"{one.topic}-{one.partition}: {one.records} records of object {one.object_id} of "
                f"coordinator {one.coordinator}: {one.reason}"
                for one in appended.left_out
            ),
        ),
        *_some("Objects of the tail that cannot be read:", iter(tail.damaged)),
    ]


def _some(heading: str, lines: Iterator[str]) -> list[str]:
    found = list(lines)
    if not found:
        return []
    more = [f"  ... and {len(found) - SHOWN} more; --json prints all"] if found[SHOWN:] else []
    return [heading, *(f"  {line}" for line in found[:SHOWN]), *more]
