"""The addresses that a node binds and advertises, by its roles.

A listener named in `controller.listener.names` is the quorum's, every other one is for clients. A
controller has the first kind, a broker the second, a node with both roles both. What is bound may
be every address of a machine; what is advertised may not, as no client can connect to `0.0.0.0`.

Source: KIP-631 (controller.listener.names), KIP-103 (listeners by name);
docs/design/running.md#nodes-and-settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from esker.settings.errors import ConfigError
from esker.settings.values import Endpoint, is_loopback, is_wildcard
from records.types import NodeId

BROKER: Final = "broker"
CONTROLLER: Final = "controller"

INSECURE: Final = "esker.insecure.controller.listener"
"""The setting that lets a controller's listener be bound beyond loopback without authentication."""

SECURED: Final = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""Names that mean a protocol in Kafka, where `listener.security.protocol.map` says nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A listener: the address it binds and the address it advertises."""

    name: str
    bind: Endpoint
    advertised: Endpoint  # port 0: the one that was bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """A node's listeners."""

    controller_name: str  # of the quorum's listener, whether this node has one or not
    controller: Place | None
    clients: tuple[Place, ...]

    @property
    def warnings(self) -> list[str]:
        """Return warnings for the operator about addresses that other machines can reach."""
        places = (*((self.controller,) if self.controller else ()), *self.clients)
        return [
            f"listener {place.name} at {place.bind} is open to every host that can reach it: "
            "there is no authentication and no encryption yet; bind it to a private network"
            for place in places
            if not is_loopback(place.bind.host)
        ]


def addresses_of(
    values: Mapping[str, Any], roles: frozenset[str], voters: Mapping[NodeId, Endpoint]
) -> Addresses:
    """Return a node's listener addresses. Raises ConfigError naming the key."""
    names: tuple[str, ...] = values["controller.listener.names"]
    if not names:
        raise ConfigError("controller.listener.names", "names no listener")
    bound: Mapping[str, Endpoint] = values["listeners"]
    for name in values["advertised.listeners"]:
        if name not in bound:
            raise ConfigError("advertised.listeners", f"{name} is not in listeners")
    for name in bound:
        protocols = values["listener.security.protocol.map"] or {}
        if name in SECURED and protocols.get(name, name) != "PLAINTEXT":
            raise ConfigError(
                "listeners", f"{name}: only PLAINTEXT is supported; TLS and SASL are not yet"
            )
    own = {name for name in bound if name in names}
    if CONTROLLER not in roles and own:
        raise ConfigError(
            "listeners",
            f"{min(own)} is of the quorum (controller.listener.names): a node that is only a "
            "broker has none of its own",
        )
    others = [name for name in bound if name not in names]
    if BROKER not in roles and others:
        raise ConfigError("listeners", f"{others[0]} is not in controller.listener.names")
    if CONTROLLER in roles and names[0] not in bound:
        raise ConfigError("listeners", f"lacks {names[0]}, the first of controller.listener.names")
    if BROKER in roles and not others:
        raise ConfigError("listeners", "names no listener for clients, as PLAINTEXT://HOST:PORT")
    return Addresses(
        controller_name=names[0],
        controller=_controller(values, names[0], voters) if CONTROLLER in roles else None,
        clients=tuple(_client(values, name) for name in others),
    )


def _controller(values: Mapping[str, Any], name: str, voters: Mapping[NodeId, Endpoint]) -> Place:
    bind: Endpoint = values["listeners"][name]
    advertised: Endpoint = values["advertised.listeners"].get(name, bind)
    node_id = NodeId(values["node.id"])
    if node_id in voters and voters[node_id].port != advertised.port:
        raise ConfigError(
            "controller.quorum.voters",
            f"says that node {node_id} listens at {voters[node_id]}, listeners say {advertised}",
        )
    if node_id in voters and is_wildcard(advertised.host):
        advertised = voters[node_id]
    if is_wildcard(bind.host) and len(voters) == 1 and is_loopback(advertised.host):
        bind = Endpoint(advertised.host, bind.port)  # no other machine is in this quorum
    _refuse_wildcard(name, advertised)
    if not is_loopback(bind.host) and not values[INSECURE]:
        raise ConfigError(
            "listeners",
            f"{name} at {bind} would let every host that reaches it speak as any node of the "
            f"quorum: bind a loopback address, or a private network's and set {INSECURE}=true",
        )
    return Place(name=name, bind=bind, advertised=advertised)


def _client(values: Mapping[str, Any], name: str) -> Place:
    bind: Endpoint = values["listeners"][name]
    advertised: Endpoint = values["advertised.listeners"].get(name, bind)
    _refuse_wildcard(name, advertised)
    if advertised.port == 0 and bind.port != 0:
        raise ConfigError("advertised.listeners", f"{name}: no client can connect to port 0")
    return Place(name=name, bind=bind, advertised=advertised)


def _refuse_wildcard(name: str, advertised: Endpoint) -> None:
    if is_wildcard(advertised.host):
        raise ConfigError(
            "advertised.listeners",
            f"others cannot connect to {advertised}: name a host or an address for {name}",
        )
