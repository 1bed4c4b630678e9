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
from esker.settings.security import check_listener, properties_of, protocol_of
from esker.settings.values import Endpoint, is_loopback, is_wildcard
from raft.net.certificates import TlsSettingError
from raft.net.security import PLAINTEXT, SASL_PLAINTEXT, SASL_SSL, SSL
from records.types import NodeId

BROKER: Final = "broker"
CONTROLLER: Final = "controller"

INSECURE: Final = "esker.insecure.controller.listener"
"""The setting that lets a controller's listener be bound beyond loopback without authentication."""

_WARNINGS: Final = {
    PLAINTEXT: "every host that can reach it is let in, and reads along; bind it to a private "
    "network, or give it TLS or SASL (docs/design/security.md)",
    SASL_PLAINTEXT: "hosts on the way read and change what is sent, and PLAIN's passwords; use "
    "SASL_SSL",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A listener: the address it binds and the address it advertises."""

    name: str
    bind: Endpoint
    advertised: Endpoint  # port 0: the one that was bound
    protocol: str = PLAINTEXT


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """A node's listeners."""

    controller_name: str  # of the quorum's listener, whether this node has one or not
    controller: Place | None
    clients: tuple[Place, ...]
    further_controllers: tuple[Place, ...] = ()  # of the same requests, for a change of protocol
    controller_protocol: str = PLAINTEXT  # of the quorum's listeners, here and on other nodes

    @property
    def places(self) -> tuple[Place, ...]:
        """Return all listeners of this node."""
        first = (self.controller,) if self.controller else ()
        return (*first, *self.further_controllers, *self.clients)

    @property
    def is_secured(self) -> bool:
        """Return whether any listener, or the connections to controllers, have TLS or SASL."""
        return {place.protocol for place in self.places} | {self.controller_protocol} != {PLAINTEXT}

    @property
    def warnings(self) -> list[str]:
        """Return warnings for the operator about addresses that other machines can reach."""
        return [
            f"listener {place.name} at {place.bind}, {place.protocol}: {_WARNINGS[place.protocol]}"
            for place in self.places
            if place.protocol in _WARNINGS and not is_loopback(place.bind.host)
        ]


def addresses_of(
    values: Mapping[str, Any],
    roles: frozenset[str],
    voters: Mapping[NodeId, Endpoint],
    given: Mapping[str, str],
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
        try:
            check_listener(given, name, protocol_of(values, name), of_controller=name in names)
        except TlsSettingError as error:
            raise ConfigError(error.key, str(error)) from None
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
        controller=_controller(values, names[0], voters, given) if CONTROLLER in roles else None,
        clients=tuple(_client(values, name) for name in others),
        further_controllers=tuple(
            _further_controller(values, name, given) for name in bound if name in names[1:]
        ),
        controller_protocol=protocol_of(values, names[0]),
    )


def _controller(
    values: Mapping[str, Any],
    name: str,
    voters: Mapping[NodeId, Endpoint],
    given: Mapping[str, str],
) -> Place:
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
    protocol = protocol_of(values, name)
    _refuse_strangers(values, name, bind, given)
    return Place(name=name, bind=bind, advertised=advertised, protocol=protocol)


def _further_controller(values: Mapping[str, Any], name: str, given: Mapping[str, str]) -> Place:
    """Return a controller listener, other than the first, through which nodes may connect."""
    bind: Endpoint = values["listeners"][name]
    _refuse_strangers(values, name, bind, given)
    return Place(name=name, bind=bind, advertised=bind, protocol=protocol_of(values, name))


def _refuse_strangers(
    values: Mapping[str, Any], name: str, bind: Endpoint, given: Mapping[str, str]
) -> None:
    """Refuse a controller listener that admits every host unauthenticated. Raises ConfigError."""
    authenticates = _authenticates(given, name, protocol_of(values, name))
    if not is_loopback(bind.host) and not authenticates and not values[INSECURE]:
        raise ConfigError(
            "listeners",
            f"{name} at {bind} would let every host that reaches it speak as any node of the "
            "quorum: bind a loopback address, or give it a protocol with SASL or SSL with "
            "ssl.client.auth=required, or bind a private network's address and set "
            f"{INSECURE}=true",
        )


def _authenticates(given: Mapping[str, str], name: str, protocol: str) -> bool:
    """Return whether a listener admits only peers with a validated identity."""
    if protocol == SSL:
        return properties_of(given, name).get("ssl.client.auth") == "required"
    return protocol in (SASL_PLAINTEXT, SASL_SSL)


def _client(values: Mapping[str, Any], name: str) -> Place:
    bind: Endpoint = values["listeners"][name]
    advertised: Endpoint = values["advertised.listeners"].get(name, bind)
    _refuse_wildcard(name, advertised)
    if advertised.port == 0 and bind.port != 0:
        raise ConfigError("advertised.listeners", f"{name}: no client can connect to port 0")
    return Place(name=name, bind=bind, advertised=advertised, protocol=protocol_of(values, name))


def _refuse_wildcard(name: str, advertised: Endpoint) -> None:
    if is_wildcard(advertised.host):
        raise ConfigError(
            "advertised.listeners",
            f"others cannot connect to {advertised}: name a host or an address for {name}",
        )
