"""Settings of the authorizer: which rights clients have comes from the cluster's log.

Source: KIP-11, KIP-801; upstream's StandardAuthorizer.
"""

from __future__ import annotations

from typing import Final

from esker.settings.base import Setting
from esker.settings.values import boolean
from raft.net.principal import parse_principal

AUTHORIZER: Final = "authorizer.class.name"
SUPER_USERS: Final = "super.users"
ALLOW_EVERYONE: Final = "allow.everyone.if.no.acl.found"
STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def _authorizer(text: str) -> str:
    if text not in ("", STANDARD_AUTHORIZER):
        raise ValueError(f"{text[:100]!r} is not supported: there is {STANDARD_AUTHORIZER}")
    return text


def _super_users(text: str) -> tuple[str, ...]:
    """Parse principals that are separated by semicolons, because names may have commas."""
    names = (name.strip() for name in text.split(";"))
    return tuple(str(parse_principal(name)) for name in names if name)


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
)
