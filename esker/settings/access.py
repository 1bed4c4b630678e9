"""Settings of the authorizer: which rights clients have comes from the cluster's log.

Source: KIP-11, KIP-801; upstream's StandardAuthorizer.
"""

from __future__ import annotations

from typing import Final

from esker.settings.base import Setting
from esker.settings.values import boolean, one_of
from raft.net.principal import parse_principal

AUTHORIZER: Final = "authorizer.class.name"
SUPER_USERS: Final = "super.users"
ALLOW_EVERYONE: Final = "allow.everyone.if.no.acl.found"
IDENTITY: Final = "esker.controller.identity"
NODE_PRINCIPALS: Final = "esker.node.principals"
STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def _authorizer(text: str) -> str:
    if text not in ("", STANDARD_AUTHORIZER):
        raise ValueError(f"{text[:100]!r} is not supported: there is {STANDARD_AUTHORIZER}")
    return text


def _super_users(text: str) -> tuple[str, ...]:
    """Parse principals that are separated by semicolons, because names may have commas."""
    names = (name.strip() for name in text.split(";"))
    return tuple(str(parse_principal(name)) for name in names if name)


def _node_principals(text: str) -> str:
    pattern = parse_principal(text)
    if pattern.name.count("*") != 1 or pattern.name == "*":
        raise ValueError(f"{text[:80]!r} is not a principal with one `*`, as User:node-*")
    return str(pattern)


SETTINGS: Final = (
    Setting(
        AUTHORIZER,
        _authorizer,
        "",
        f"`{STANDARD_AUTHORIZER}`: access control entries decide what clients may do; "
        "empty: everything is allowed.",
    ),
    Setting(
        SUPER_USERS,
        _super_users,
        (),
        "Principals that may do everything, separated by `;`, such as `User:admin;User:CN=node`. "
        "With an authorizer the nodes themselves must be among them.",
    ),
    Setting(
        ALLOW_EVERYONE,
        boolean,
        False,
        "Whether everybody may use a resource for which there is no access control entry.",
    ),
    Setting(
        IDENTITY,
        one_of("off", "log", "enforce"),
        "off",
        "Whether controllers check that a peer is the node as which its request speaks: `off`, "
        "`log` (log and count, refuse nothing) or `enforce`. Needs an authorizer.",
    ),
    Setting(
        NODE_PRINCIPALS,
        _node_principals,
        "User:node-*",
        "The principals of nodes, where `*` stands for the node id. A peer with another principal "
        "is known by its certificate, which has `esker:node:ID` or the node's host among its "
        "names.",
    ),
)
