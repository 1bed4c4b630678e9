"""`esker groups reset-offsets`: new committed offsets of groups, as kafka-consumer-groups does.

Without --execute the offsets are printed and not committed. The plans of all groups are made before
the first is committed, so a group that cannot be reset leaves the others as they are.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from esker.client.client import MAX_INT64, ClientError, KafkaClient
from esker.client.offset_resets import (
    Plan,
    Rule,
    To,
    commit_reset,
    existing_partitions,
    is_resettable,
    parse_datetime,
    parse_duration,
    parse_plan,
    parse_topics,
    plan_reset,
    require_inactive,
)
from esker.commands.cluster_access import (
    AsJson,
    Server,
    TimeoutMs,
    broker_addresses,
    broker_client,
    run_or_fail,
)
from esker.commands.files import read_text_or_exit
from esker.commands.names import GroupNames, complete_topics
from esker.commands.text_tables import show, table

EXAMPLE = "Example: esker groups reset-offsets readers --topic orders:0,1 --to-earliest --execute"
TIMEOUT_MS: Final = 30_000

Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        metavar="TOPIC[:N,...]",
        autocompletion=complete_topics,
        help="Topic to reset (TOPIC), or some of its partitions (TOPIC:N,...); may be repeated.",
    ),
]
AllGroups = Annotated[
    bool,
    typer.Option(
        "--all-groups",
        help="Reset offsets of all consumer groups; default: of the groups that GROUP names.",
    ),
]
AllTopics = Annotated[
    bool,
    typer.Option(
        "--all-topics",
        help="Reset every partition for which the group has a committed offset; default: the "
        "partitions of each --topic.",
    ),
]
Execute = Annotated[
    bool,
    typer.Option("--execute", help="Commit the new offsets; default: only print them."),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Print the new offsets without committing them; this is the default."
    ),
]
Export = Annotated[
    bool,
    typer.Option(
        "--export",
        help="Print new offsets as CSV for --from-file (topic,partition,offset, or for several "
        "groups group,topic,partition,offset); default: print a table.",
    ),
]


def _flag(option: str, help: str) -> Any:  # noqa: A002 (Typer's name)
    return typer.Option(option, help=help)


ToEarliest = Annotated[bool, _flag("--to-earliest", "Reset to the first offset of each partition.")]
ToLatest = Annotated[bool, _flag("--to-latest", "Reset to the end offset of each partition.")]
ToCurrent = Annotated[
    bool,
    _flag(
        "--to-current",
        "Leave committed offsets as they are; reset partitions without a commit to the end offset.",
    ),
]
ToOffset = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=MAX_INT64,
        help="Offset to which every chosen partition is reset, limited to the offsets of its log.",
    ),
]
ShiftBy = Annotated[
    int | None,
    typer.Option(
        min=-MAX_INT64,
        max=MAX_INT64,
        help="Number of offsets by which to move each committed offset; a negative number "
        "moves back.",
    ),
]
ToDatetime = Annotated[
    str | None,
    typer.Option(
        metavar="YYYY-MM-DDThh:mm:ss.sss",
        help="Time (YYYY-MM-DDThh:mm:ss.sss) of the first record to read, in UTC or with a "
        "zone such as +01:00.",
    ),
]
ByDuration = Annotated[
    str | None,
    typer.Option(
        metavar="PnDTnHnMnS",
        help="Maximum age of the first record to read, as an ISO 8601 duration such as PT1H30M.",
    ),
]
FromFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Path of a CSV file with the columns topic,partition,offset or "
        "group,topic,partition,offset, as --export prints it.",
    ),
]


def reset_offsets(
    group: GroupNames = None,
    all_groups: AllGroups = False,
    bootstrap_server: Server = None,
    topic: Topics = None,
    all_topics: AllTopics = False,
    to_earliest: ToEarliest = False,
    to_latest: ToLatest = False,
    to_current: ToCurrent = False,
    to_offset: ToOffset = None,
    shift_by: ShiftBy = None,
    to_datetime: ToDatetime = None,
    by_duration: ByDuration = None,
    from_file: FromFile = None,
    dry_run: DryRun = False,
    execute: Execute = False,
    export: Export = False,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = TIMEOUT_MS,
) -> None:
    """Reset the committed offsets of groups without members.

    Takes one rule (--to-..., --shift-by, --by-duration or --from-file) and, but for a file, the
    partitions by --topic or --all-topics. An offset outside of a partition's log becomes its
    first or its end offset.
    """
    if all_groups == bool(group):
        raise typer.BadParameter("Either --all-groups or at least one GROUP must be given.")
    if dry_run and execute:
        raise typer.BadParameter("--dry-run and --execute exclude each other: give one of them")
    if export and as_json:
        raise typer.BadParameter("--export and --json exclude each other: give one of them")
    options = {
        "--to-earliest": to_earliest or None,
        "--to-latest": to_latest or None,
        "--to-current": to_current or None,
        "--to-offset": to_offset,
        "--shift-by": shift_by,
        "--to-datetime": to_datetime,
        "--by-duration": by_duration,
        "--from-file": from_file,
    }
    named = list(dict.fromkeys(group or []))
    if all_groups and from_file is not None:
        raise typer.BadParameter("excludes --all-groups: name groups", param_hint="--from-file")
    # Without a group's name, its rule is that of all groups.
    rules = {name: _rule(options, name, of_several=len(named) > 1) for name in named or [""]}
    scopes = {
        name: _scope(topic or [], rule, all_topics=all_topics) for name, rule in rules.items()
    }

    async def exchange() -> dict[str, Plan]:
        async with broker_client(broker_addresses(bootstrap_server), timeout_ms) as client:
            groups = named or await _resettable(client, all_topics=all_topics)
            plans = {}
            for name in groups:
                key = name if named else ""
                rule, scope = rules[key], scopes[key]
                await require_inactive(client, name)
                partitions = None if scope is None else await existing_partitions(client, scope)
                plans[name] = await plan_reset(client, name, partitions, rule)
            if execute:
                for name, plan in plans.items():
                    await commit_reset(client, name, plan.offsets)
            return plans

    plans = run_or_fail(exchange())
    for plan in plans.values():
        for warning in plan.warnings:
            typer.echo(f"esker: {warning}", err=True)
    if export:
        typer.echo("\n".join(_as_csv(plans)))
    else:
        show(_as_json(plans, executed=execute), _as_text(plans), as_json=as_json)
    if not execute:
        typer.echo("esker: nothing is committed: --execute commits these offsets", err=True)


async def _resettable(client: KafkaClient, *, all_topics: bool) -> list[str]:
    """Return the consumer groups that can be reset; print a warning for each other group.

    Raises ClientError if no group can be reset.
    """
    found = []
    for name in await client.groups():
        if await is_resettable(client, name, all_topics=all_topics):
            found.append(name)
        else:
            typer.echo(f"esker: group {name} is left: members or no committed offsets", err=True)
    if not found:
        raise ClientError("no group can be reset: each has members, or no committed offsets")
    return found


def _rule(options: dict[str, Any], group: str, *, of_several: bool) -> Rule:
    """Return the rule for new offsets that the options name. Raises typer.BadParameter."""
    given = {name: value for name, value in options.items() if value is not None}
    if len(given) != 1:
        which = " and ".join(given) + " exclude each other: " if given else ""
        raise typer.BadParameter(f"{which}give one of {', '.join(options)}")
    ((name, value),) = given.items()
    try:
        if name == "--by-duration":
            now_ms = time.time_ns() // 1_000_000
            return Rule(To.TIMESTAMP, max(0, now_ms - parse_duration(value)))
        if name == To.TIMESTAMP:
            return Rule(To.TIMESTAMP, max(0, parse_datetime(value)))
        if name == To.FILE:
            text = read_text_or_exit(value)
            return Rule(To.FILE, offsets=parse_plan(text, group, of_several=of_several))
    except ValueError as error:
        where = f"{value}: " if name == To.FILE else ""
        raise typer.BadParameter(f"{where}{error}", param_hint=name) from None
    return Rule(To(name), value if name in (To.OFFSET, To.SHIFT) else 0)


def _scope(
    topics: list[str], rule: Rule, *, all_topics: bool
) -> dict[str, tuple[int, ...] | None] | None:
    """Return the partitions to reset, by topic; None means all that have a committed offset.

    Raises typer.BadParameter.
    """
    if rule.to is To.FILE:
        if topics or all_topics:
            raise typer.BadParameter(
                "excludes --topic and --all-topics: the file names partitions",
                param_hint="--from-file",
            )
        partitions: dict[str, tuple[int, ...] | None] = {}
        for name, partition in rule.offsets:
            partitions[name] = (*(partitions.get(name) or ()), partition)
        return partitions
    if all_topics == bool(topics):
        raise typer.BadParameter(
            "One of the reset scopes should be defined: --all-topics, --topic."
        )
    try:
        return None if all_topics else parse_topics(topics)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--topic") from None


def _rows(plans: Mapping[str, Plan]) -> list[tuple[str, tuple[str, int], int | None, int]]:
    """Return each consumer group's partitions with their committed and new offsets."""
    return [
        (group, key, plan.committed.get(key), offset)
        for group, plan in plans.items()
        for key, offset in sorted(plan.offsets.items())
    ]


def _as_csv(plans: Mapping[str, Plan]) -> list[str]:
    """Return new offsets as CSV lines for --from-file, with a group column for several groups."""
    several = len(plans) > 1
    return [
        f"{group},{topic},{partition},{offset}" if several else f"{topic},{partition},{offset}"
        for group, (topic, partition), _, offset in _rows(plans)
    ]


def _as_text(plans: Mapping[str, Plan]) -> str:
    rows = [
        (group, key[0], str(key[1]), "-" if committed is None else str(committed), str(offset))
        for group, key, committed, offset in _rows(plans)
    ]
    return table(("Group", "Topic", "Partition", "Committed", "NewOffset"), rows)


def _as_json(plans: Mapping[str, Plan], *, executed: bool) -> dict[str, Any]:
    partitions = [
        {
            "group": group,
            "topic": key[0],
            "partition": key[1],
            "committed": committed,
            "newOffset": offset,
        }
        for group, key, committed, offset in _rows(plans)
    ]
    return {"groups": list(plans), "executed": executed, "partitions": partitions}
