"""`esker groups`: list, describe, reset and delete consumer groups; print members and lag.

The columns of `describe` are those of Kafka's own `kafka-consumer-groups`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeVar

from esker.client.client import LATEST, ClientError, KafkaClient
from esker.client.group_member import all_committed_offsets
from esker.commands.base import CommandGroup
from esker.commands.cluster_access import (
    AsJson,
    Server,
    TimeoutMs,
    broker_addresses,
    broker_client,
    fail,
    run_or_fail,
)
from esker.commands.names import GroupName
from esker.commands.reset_offsets import EXAMPLE as RESET_EXAMPLE
from esker.commands.reset_offsets import reset_offsets
from esker.commands.text_tables import show, table
from records.consumer_protocol import decode_assignment
from records.kafka_errors import error_name
from records.rpc.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsResponse,
)

T = TypeVar("T")

app = CommandGroup("List, describe, reset and delete consumer groups.")

LIST_EXAMPLE = "Example: esker groups list"
DESCRIBE_EXAMPLE = "Example: esker groups describe readers --json"
DELETE_EXAMPLE = "Example: esker groups delete readers"
TIMEOUT_MS: Final = 30_000
DEAD: Final = "Dead"
REFUSALS: Final = {
    68: "group {} has members: stop them first",
    69: "no such group: {}; `esker groups list` prints all",
}
"""Kafka's NON_EMPTY_GROUP and GROUP_ID_NOT_FOUND."""

_Group = DescribeGroupsResponse.DescribedGroup
_Member = _Group.DescribedGroupMember


class Progress(NamedTuple):
    """One partition of a group: its committed offset, its end offset and its assigned member."""

    topic: str
    partition: int
    committed: int | None
    end_offset: int
    member: _Member | None

    @property
    def lag(self) -> int | None:
        """Return the end offset minus the committed offset, or None without a committed offset."""
        return None if self.committed is None else self.end_offset - self.committed


@app.callback(epilog=LIST_EXAMPLE)
def groups() -> None:
    """List, describe, reset and delete consumer groups."""


@app.command(name="list", epilog=LIST_EXAMPLE)
def list_(
    bootstrap_server: Server = None,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = TIMEOUT_MS,
) -> None:
    """Print all groups with their protocol and state."""
    groups = list_groups(bootstrap_server, timeout_ms).values()
    listed = [
        {"group": group.group_id, "protocol": group.protocol_type, "state": group.group_state}
        for group in groups
    ]
    rows = [(group.group_id, group.protocol_type or "-", group.group_state) for group in groups]
    show({"groups": listed}, table(("Group", "Protocol", "State"), rows), as_json=as_json)


def list_groups(
    bootstrap_server: str | None, timeout_ms: int
) -> dict[str, ListGroupsResponse.ListedGroup]:
    """Return all consumer groups by name, or end the command if no broker responds."""

    async def exchange() -> dict[str, ListGroupsResponse.ListedGroup]:
        async with broker_client(broker_addresses(bootstrap_server), timeout_ms) as client:
            return await client.groups()

    return run_or_fail(exchange())


@app.command(epilog=DESCRIBE_EXAMPLE)
def describe(
    group: GroupName,
    bootstrap_server: Server = None,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = TIMEOUT_MS,
) -> None:
    """Print a group's state and, for each partition, its committed offset, lag and member.

    Lag is the number of records between the committed offset and the partition's end offset.
    """

    async def exchange() -> tuple[_Group, list[Progress]]:
        async with broker_client(broker_addresses(bootstrap_server), timeout_ms) as client:
            return await _describe(client, group)

    found, progress = run_or_fail(exchange())
    if found.group_state == DEAD and not progress:
        fail(f"no such group: {group}; `esker groups list` prints all")
    show(_as_json(found, progress), _as_text(found, progress), as_json=as_json)


@app.command(epilog=DELETE_EXAMPLE)
def delete(
    group: GroupName,
    bootstrap_server: Server = None,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = TIMEOUT_MS,
) -> None:
    """Delete a group without members, and its committed offsets."""

    async def exchange() -> None:
        async with broker_client(broker_addresses(bootstrap_server), timeout_ms) as client:

            async def attempt() -> None:
                coordinator = await client.group_coordinator(group)
                request = DeleteGroupsRequest(groups_names=(group,))
                (result,) = (await client.ask(coordinator, request, DeleteGroupsResponse)).results
                code = result.error_code
                if code in REFUSALS:
                    raise ClientError(REFUSALS[code].format(group))
                if code:
                    raise ClientError(f"group {group}: {error_name(code)}", code)

            await client.patiently(attempt)

    run_or_fail(exchange())
    show({"group": group}, f"Deleted group {group}.", as_json=as_json)


app.command("reset-offsets", epilog=RESET_EXAMPLE)(reset_offsets)


async def _describe(client: KafkaClient, group: str) -> tuple[_Group, list[Progress]]:
    async def attempt() -> _Group:
        coordinator = await client.group_coordinator(group)
        request = DescribeGroupsRequest(groups=(group,))
        (found,) = (await client.ask(coordinator, request, DescribeGroupsResponse)).groups
        if found.error_code and found.group_state != DEAD:
            raise ClientError(f"group {group}: {error_name(found.error_code)}", found.error_code)
        return found

    found = await client.patiently(attempt)
    owners = {
        topic_partition: member
        for member in found.members
        for topic_partition in decode_assignment(member.member_assignment)
    }
    if found.group_state == DEAD:  # Kafka's state of a group that never existed, too
        return found, []
    committed = await all_committed_offsets(client, group, None)
    progress = []
    topic_partitions = sorted({*committed, *owners})
    for topic in dict.fromkeys(topic for topic, _ in topic_partitions):
        partitions = [partition for name, partition in topic_partitions if name == topic]
        ends = await client.offsets(topic, dict.fromkeys(partitions, LATEST))
        progress += [
            Progress(*key, committed.get(key), ends[key[1]], owners.get(key))
            for key in topic_partitions
            if key[0] == topic
        ]
    return found, progress


# --- what is printed ----------------------------------------------------------------------------


def _as_text(group: _Group, progress: list[Progress]) -> str:
    head = (
        f"Group: {group.group_id}  State: {group.group_state}  "
        f"Assignor: {group.protocol_data or '-'}  Members: {len(group.members)}"
    )
    rows = [
        (
            row.topic,
            str(row.partition),
            "-" if row.committed is None else str(row.committed),
            str(row.end_offset),
            "-" if row.lag is None else str(row.lag),
            *((row.member.member_id, row.member.client_host) if row.member else ("-", "-")),
        )
        for row in progress
    ]
    if not rows:
        return head
    headings = ("Topic", "Partition", "Committed", "EndOffset", "Lag", "Member", "Host")
    return f"{head}\n{table(headings, rows)}"


def _as_json(group: _Group, progress: list[Progress]) -> dict[str, Any]:
    return {
        "group": group.group_id,
        "state": group.group_state,
        "assignor": group.protocol_data or None,
        "members": [
            {
                "memberId": member.member_id,
                "instanceId": member.group_instance_id,
                "clientId": member.client_id,
                "host": member.client_host,
                "partitions": [
                    {"topic": topic, "partition": partition}
                    for topic, partition in decode_assignment(member.member_assignment)
                ],
            }
            for member in group.members
        ],
        "partitions": [
            {
                "topic": row.topic,
                "partition": row.partition,
                "committed": row.committed,
                "endOffset": row.end_offset,
                "lag": row.lag,
                "memberId": row.member.member_id if row.member else None,
            }
            for row in progress
        ],
    }
