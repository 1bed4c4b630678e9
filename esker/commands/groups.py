"""`esker groups`: consumer groups, their members, how far behind they are, and their end.

The columns of `describe` are those of Kafka's own `kafka-consumer-groups`.
"""

from __future__ import annotations

import json
from collections.abc import Coroutine
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import typer

from esker.client.client import LATEST, ClientError, KafkaClient
from esker.client.group_member import all_committed_offsets, decode_assignment
from esker.commands.cluster_access import (
    DEFAULT_SERVER,
    AsJson,
    BrokerBootstrap,
    TimeoutMs,
    brokers_at,
    fail,
)
from esker.commands.text_tables import table
from raft.net.errors import NetError
from raft.net.runner import run
from records.kafka_errors import error_name
from records.rpc.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)

T = TypeVar("T")

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Consumer groups: who reads what, and how far."
)

_AT: Final = "--bootstrap-server 127.0.0.1:9092"
LIST_EXAMPLE = f"Example: esker groups list {_AT}"
DESCRIBE_EXAMPLE = f"Example: esker groups describe --group readers {_AT} --json"
DELETE_EXAMPLE = f"Example: esker groups delete --group readers {_AT}"
TIMEOUT_MS: Final = 30_000
DEAD: Final = "Dead"
REFUSALS: Final = {
    68: "group {} has members: end them first",
    69: "no such group: {}",
}
"""Kafka's NON_EMPTY_GROUP and GROUP_ID_NOT_FOUND."""

_Group = DescribeGroupsResponse.DescribedGroup
_Member = _Group.DescribedGroupMember


class Progress(NamedTuple):
    """One partition of a group: what is committed, what there is, and whose it is."""

    topic: str
    partition: int
    committed: int | None
    end_offset: int
    member: _Member | None

    @property
    def lag(self) -> int | None:
        """Records that are there and not committed; None if nothing was ever committed."""
        return None if self.committed is None else self.end_offset - self.committed


@app.callback()
def groups() -> None:
    """Consumer groups: who reads what, and how far."""


@app.command(name="list", epilog=LIST_EXAMPLE)
def list_(
    bootstrap_server: BrokerBootstrap = DEFAULT_SERVER,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = TIMEOUT_MS,
) -> None:
    """Print all groups, each as the broker that acts for it has it."""

    async def asked() -> dict[str, ListGroupsResponse.ListedGroup]:
        async with KafkaClient(brokers_at(bootstrap_server), timeout_ms=timeout_ms) as client:

            async def attempt() -> dict[str, ListGroupsResponse.ListedGroup]:
                found = {}
                for node in await client.brokers():
                    answer = await client.ask(node, ListGroupsRequest(), ListGroupsResponse)
                    if answer.error_code:
                        name = error_name(answer.error_code)
                        raise ClientError(f"broker {node}: {name}", answer.error_code)
                    found.update({one.group_id: one for one in answer.groups})
                return dict(sorted(found.items()))

            return await client.patiently(attempt)  # one that died is missed until it is fenced

    found = _ended_by(asked())
    if as_json:
        listed = [
            {"group": one.group_id, "protocol": one.protocol_type, "state": one.group_state}
            for one in found.values()
        ]
        typer.echo(json.dumps({"groups": listed}))
        return
    rows = [(one.group_id, one.protocol_type or "-", one.group_state) for one in found.values()]
    typer.echo(table(("Group", "Protocol", "State"), rows))


@app.command(epilog=DESCRIBE_EXAMPLE)
def describe(
    group: Annotated[str, typer.Option(metavar="GROUP", help="The group's id.")],
    bootstrap_server: BrokerBootstrap = DEFAULT_SERVER,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = TIMEOUT_MS,
) -> None:
    """Print a group's members, and what it has committed of each partition.

    Lag is how many records lie between the committed offset and the partition's end.
    """

    async def asked() -> tuple[_Group, list[Progress]]:
        async with KafkaClient(brokers_at(bootstrap_server), timeout_ms=timeout_ms) as client:
            return await _described(client, group)

    found, progress = _ended_by(asked())
    if found.group_state == DEAD and not progress:
        fail(f"no such group: {group}")
    typer.echo(json.dumps(_as_json(found, progress)) if as_json else _as_text(found, progress))


@app.command(epilog=DELETE_EXAMPLE)
def delete(
    group: Annotated[str, typer.Option(metavar="GROUP", help="The group's id.")],
    bootstrap_server: BrokerBootstrap = DEFAULT_SERVER,
    timeout_ms: TimeoutMs = TIMEOUT_MS,
) -> None:
    """Forget a group that has no members, and all that it has committed."""

    async def asked() -> None:
        async with KafkaClient(brokers_at(bootstrap_server), timeout_ms=timeout_ms) as client:

            async def attempt() -> None:
                coordinator = await client.group_coordinator(group)
                request = DeleteGroupsRequest(groups_names=(group,))
                (one,) = (await client.ask(coordinator, request, DeleteGroupsResponse)).results
                if one.error_code in REFUSALS:
                    raise ClientError(REFUSALS[one.error_code].format(group))
                if one.error_code:
                    raise ClientError(
                        f"group {group}: {error_name(one.error_code)}", one.error_code
                    )

            await client.patiently(attempt)

    _ended_by(asked())
    typer.echo(f"Deleted group {group}.")


async def _described(client: KafkaClient, group: str) -> tuple[_Group, list[Progress]]:
    async def attempt() -> _Group:
        coordinator = await client.group_coordinator(group)
        request = DescribeGroupsRequest(groups=(group,))
        (one,) = (await client.ask(coordinator, request, DescribeGroupsResponse)).groups
        if one.error_code and one.group_state != DEAD:
            raise ClientError(f"group {group}: {error_name(one.error_code)}", one.error_code)
        return one

    found = await client.patiently(attempt)
    owners = {
        place: member
        for member in found.members
        for place in decode_assignment(member.member_assignment)
    }
    if found.group_state == DEAD:  # for Kafka a group that never was is dead
        return found, []
    committed = await all_committed_offsets(client, group, None)
    progress = []
    places = sorted({*committed, *owners})
    for topic in dict.fromkeys(topic for topic, _ in places):
        partitions = [partition for name, partition in places if name == topic]
        ends = await client.offsets(topic, dict.fromkeys(partitions, LATEST))
        progress += [
            Progress(topic, one, committed.get((topic, one)), ends[one], owners.get((topic, one)))
            for one in partitions
        ]
    return found, progress


def _ended_by(question: Coroutine[Any, Any, T]) -> T:
    """The answer; ends the command if there is none."""
    try:
        return run(question)
    except (ClientError, NetError) as error:
        fail(str(error))


# --- what is printed ----------------------------------------------------------------------------


def _as_text(group: _Group, progress: list[Progress]) -> str:
    head = (
        f"Group: {group.group_id}  State: {group.group_state}  "
        f"Assignor: {group.protocol_data or '-'}  Members: {len(group.members)}"
    )
    rows = [
        (
            one.topic,
            str(one.partition),
            "-" if one.committed is None else str(one.committed),
            str(one.end_offset),
            "-" if one.lag is None else str(one.lag),
            *((one.member.member_id, one.member.client_host) if one.member else ("-", "-")),
        )
        for one in progress
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
                "memberId": one.member_id,
                "instanceId": one.group_instance_id,
                "clientId": one.client_id,
                "host": one.client_host,
                "partitions": [
                    {"topic": topic, "partition": partition}
                    for topic, partition in decode_assignment(one.member_assignment)
                ],
            }
            for one in group.members
        ],
        "partitions": [
            {
                "topic": one.topic,
                "partition": one.partition,
                "committed": one.committed,
                "endOffset": one.end_offset,
                "lag": one.lag,
                "memberId": one.member.member_id if one.member else None,
            }
            for one in progress
        ],
    }
