"""Arguments that name topics, groups and other things, and the names that shells complete.

A command's module declares `topic: TopicName`, and `esker.commands.base` adds `--topic`.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Final

import typer

from esker.client.profiles import ProfileError, read_profiles

COMPLETE_MS: Final = 1_000
"""Time to wait for a cluster while a person waits for names; then none are offered."""


def _topics(addresses: Mapping[str, str]) -> Iterable[str]:
    from esker.commands.cluster_access import ask, target
    from records.rpc.descriptions import DescribeTopicsRequest, DescribeTopicsResponse

    cluster = target(*map(addresses.get, ("bootstrap_controller", "bootstrap_server")))
    request = DescribeTopicsRequest(topic_names=None)
    return (
        topic.topic_name
        for topic in ask(cluster, request, DescribeTopicsResponse, COMPLETE_MS).topics
    )


def _groups(addresses: Mapping[str, str]) -> Iterable[str]:
    from esker.commands.groups import list_groups

    return list_groups(addresses.get("bootstrap_server"), COMPLETE_MS)


def _completion_of(names: Callable[[dict[str, Any]], Iterable[str]]) -> Callable[..., list[str]]:
    """Return a shell completion of names in a cluster; it is empty if no node responds."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        # A sentence about an unreachable cluster would stand in the middle of the typed line.
        with contextlib.suppress(Exception), contextlib.redirect_stderr(io.StringIO()):
            from esker.commands.base import apply_profile

            options = dict(ctx.params)
            apply_profile(options)
            return sorted(name for name in names(options) if name.startswith(incomplete))
        return []

    return complete


def complete_profiles(incomplete: str) -> list[str]:
    """Return the names of profiles that begin with the typed text; none if the file is invalid."""
    try:
        return [name for name in read_profiles().by_name if name.startswith(incomplete)]
    except ProfileError:  # a line that is typed has no place for a message
        return []


def complete_from(*words: str) -> Callable[[str], list[str]]:
    """Return a shell completion that offers those of `words` that begin with the typed text."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete


complete_topics = _completion_of(_topics)
complete_groups = _completion_of(_groups)


def _argument(metavar: str, help: str, names: Any = None) -> Any:  # noqa: A002 (Typer's name)
    complete = None if names is None else _completion_of(names)
    return typer.Argument(metavar=metavar, help=help, autocompletion=complete, show_default=False)


def topic_argument(help: str) -> Any:  # noqa: A002 (Typer's name)
    """Declare the argument of a command that takes the name of one topic."""
    return _argument("TOPIC", help, _topics)


TopicName = Annotated[str, topic_argument("Name of the topic.")]
TopicNames = Annotated[
    list[str] | None, _argument("TOPIC", "Names of topics; default: all topics.", _topics)
]
GroupNames = Annotated[
    list[str] | None, _argument("GROUP", "Ids (group.id) of consumer groups.", _groups)
]
GroupName = Annotated[str, _argument("GROUP", "Id (group.id) of the consumer group.", _groups)]
