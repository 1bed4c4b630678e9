"""Decides whether a connection's peer may speak as the node that its request names.

    identities = PeerIdentities(mode, pattern, voters, lambda: image.brokers, find_owner)
    if identities.refuses(connection, api_key, request): ...    # answer with error 31

A peer proves its node id by one of three, the first that applies:

- its principal, if `esker.node.principals` gives it a node id, as `User:node-*` does `User:node-7`;
- URIs `esker:node:7` in its certificate, for nodes that share a host;
- a certificate that covers the host at which the node is configured or registered: the check that a
  client makes, backwards. Names with wildcards cover no node.

Requests that only nodes send, Envelope among them, have no sender's id: they are taken from each
voter and registered broker. Of those, a request of a group's or transactional id's owner is taken
from the broker that the log names as its owner.

The trap: a new broker is neither configured nor registered. An id that no node has yet may be named
by a peer with some certificate or user, because it has no rights: its calls fail for lack of a
broker epoch. Its registration must come from one of the hosts that it registers, and from then on
the id stays at its hosts until it is unregistered.

Source: docs/design/security.md#peers.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol

from prometheus_client.metrics_core import CounterMetricFamily, Metric

from coordinator.controller.access import host_of
from raft.net.identity import NODE_URI, normal_host
from raft.net.principal import ANONYMOUS, Principal

log = logging.getLogger("esker.audit")

_NODE_ID: Final = re.compile(r"0|[1-9][0-9]{0,9}")

MAX_LOGGED: Final = 10_000
"""Pairs of client and api key whose first refusal was logged; beyond it, they are forgotten."""


class IdentityMode(StrEnum):
    """The values of `esker.controller.identity`."""

    OFF = "off"
    LOG = "log"
    ENFORCE = "enforce"


class Peer(Protocol):
    """The connection of a request: whom its peer has proved to be."""

    peer: str
    principal: Principal
    certificate_names: frozenset[str]


Brokers = Mapping[int, Any]
"""The registered brokers by id; an image's, which never changes."""


class Owner(Protocol):
    """The ownership of a group or of a transactional id, as its log has it."""

    @property
    def ownership_epoch(self) -> int: ...

    @property
    def broker_id(self) -> int: ...


FindOwner = Callable[[str, str], Owner | None]
"""(`group_id` or `transactional_id`, the id) -> its owner, or None if the log has no owner."""


class Claim(NamedTuple):
    """A node as which a request speaks."""

    node_id: int  # -1: any
    is_voter: bool = False  # whether only a voter may send the request
    registers: frozenset[str] | None = None  # the hosts of a registration


def _field(name: str, *, is_voter: bool = False) -> Callable[[Any], Iterable[Claim]]:
    """Return a function that reads the claim in one field; a negative id stands for none."""

    def claims(request: Any) -> Iterable[Claim]:
        node_id = getattr(request, name)
        return () if node_id < 0 and not is_voter else (Claim(node_id, is_voter),)

    return claims


def _of_partitions(name: str) -> Callable[[Any], Iterable[Claim]]:
    """Return a function that reads the voter that each partition of a request names."""

    def claims(request: Any) -> Iterable[Claim]:
        ids = {getattr(part, name) for topic in request.topics for part in topic.partitions}
        return [Claim(node_id, is_voter=True) for node_id in sorted(ids)]

    return claims


def _of_fetch(request: Any) -> Iterable[Claim]:
    """Return the replica of a Fetch, which one of two fields names by the request's version."""
    ids = {request.replica_id, request.replica_state.replica_id}
    return [Claim(node_id) for node_id in sorted(ids) if node_id >= 0]


def _of_registration(request: Any) -> Iterable[Claim]:
    hosts = frozenset(normal_host(listener.host) for listener in request.listeners)
    return (Claim(request.broker_id, registers=hosts),)


CLAIMS: Final[Mapping[int, Callable[[Any], Iterable[Claim]]]] = {
    1: _of_fetch,
    2: _field("replica_id"),
    52: _of_partitions("replica_id"),
    53: _of_partitions("leader_id"),
    54: _of_partitions("leader_id"),
    59: _field("replica_id"),
    62: _of_registration,
    70: _field("controller_id", is_voter=True),
    **{key: _field("broker_id") for key in (63, 67, 1094, 1100, 1101, 1116, 1117, 1120, 1140)},
}
"""The nodes as which a request speaks, by api key."""

OF_CONTROLLERS: Final = frozenset({1093, 1095, 1107})
"""Calls of the active controller to batch coordinators: any voter may send them."""

OWNED: Final[Mapping[int, str]] = {
    **dict.fromkeys((1121, 1122, 1124, 1125, 1126), "group_id"),
    **dict.fromkeys((1141, 1142, 1143), "transactional_id"),
}
"""Requests of an owner: the field with the id of what it owns, by api key."""

OF_NODES: Final = frozenset({58, 1096, 1102, 1103, 1104, 1127, 1130, 1144, 1146, 1150, *OWNED})
"""Requests that brokers and voters alone send, without an id of theirs: Envelope, deletion of
records and objects, writes to the logs of groups and transactions, markers, proofs, reports of
lost records."""

NAMED_ONLY: Final = frozenset({64})
"""Requests with the id of a node that is their object: UnregisterBroker, which has a guard."""


class PeerIdentities:
    """The check of one controller's listeners, with its counters."""

    def __init__(
        self,
        mode: IdentityMode,
        pattern: Principal,
        voters: Mapping[int, str],
        brokers: Callable[[], Brokers],
        find_owner: FindOwner,
    ) -> None:
        """Create the check.

        Args:  pattern: the principals of nodes; `*` in the name stands for the node id.
               voters: the configured host of each voter.
               brokers: returns the registered brokers of the newest image.
               find_owner: finds the owner of a group or of a transactional id.
        """
        self.mode = mode
        self.refused: Counter[int] = Counter()  # by api key; with `log` they pass nevertheless
        self._kind = pattern.kind
        self._before, _, self._after = pattern.name.partition("*")
        self._voters = {node_id: normal_host(host) for node_id, host in voters.items()}
        self._brokers = brokers
        self._find_owner = find_owner
        self._logged: set[tuple[str, str, int]] = set()
        self._hosts_of: object = None  # the brokers that `_node_hosts` was made from
        self._node_hosts: frozenset[str] = frozenset()

    def checks(self, api_key: int) -> bool:
        """Return whether requests of an API speak as a node."""
        return self.mode is not IdentityMode.OFF and (
            api_key in CLAIMS or api_key in OF_CONTROLLERS or api_key in OF_NODES
        )

    def refuses(self, connection: Peer, api_key: int, request: Any) -> bool:
        """Return whether a request is refused; count it, and log a client's first one."""
        claim = self._false_claim(connection, api_key, request)
        if claim is None:
            return False
        self.refused[api_key] += 1
        enforced = self.mode is IdentityMode.ENFORCE
        host = host_of(connection.peer)
        key = (str(connection.principal), host, api_key)
        if key not in self._logged:
            if len(self._logged) >= MAX_LOGGED:
                self._logged.clear()
            self._logged.add(key)
            log.info(
                "decision=%s principal=%r host=%s api_key=%d as_node=%s reason='its principal and "
                "certificate are not those of this node'",
                "denied" if enforced else "would_deny", key[0][:249], host, api_key,
                str(claim.node_id) if claim.node_id >= 0
                else "a voter" if claim.is_voter else "a node",
            )  # fmt: skip
        return enforced

    def metrics(self) -> Iterator[Metric]:
        """Yield the number of requests from peers that spoke as another node."""
        refused = CounterMetricFamily(
            "esker_controller_identity_mismatches",
            "Requests whose peer did not prove the node id in them",
            labels=("api_key", "refused"),
        )
        enforced = "yes" if self.mode is IdentityMode.ENFORCE else "no"
        for api_key, count in sorted(self.refused.items()):
            refused.add_metric((str(api_key), enforced), count)
        yield refused

    def _false_claim(self, connection: Peer, api_key: int, request: Any) -> Claim | None:
        """Return the first node of a request as which its peer may not speak, or None."""
        if api_key in OF_CONTROLLERS:
            if any(self._is(connection, Claim(node_id, True)) for node_id in self._voters):
                return None
            return Claim(-1, is_voter=True)
        if api_key in OF_NODES:
            if not self._is_any_node(connection):
                return Claim(-1)
            owner = self._owner(api_key, request)
            if owner is None or self._is(connection, Claim(owner)):
                return None
            return Claim(owner)
        for claim in CLAIMS[api_key](request):
            if not self._is(connection, claim):
                return claim
        return None

    def _is(self, connection: Peer, claim: Claim) -> bool:
        """Return whether a peer may speak as a node."""
        node_id = claim.node_id
        if claim.is_voter and node_id not in self._voters:
            return False
        named = self._node_ids(connection)
        if named:
            return str(node_id) in named
        names = connection.certificate_names
        hosts = self._hosts(node_id)
        if hosts is None:
            hosts = claim.registers
        if hosts is None:  # a new node that reads, or one whose broker epoch is judged
            return bool(names) or connection.principal != ANONYMOUS
        return not hosts.isdisjoint(names)

    def _owner(self, api_key: int, request: Any) -> int | None:
        """Return the broker as which a request of an owner speaks, or None.

        Of an owner that has changed since, the decision refuses the request, with its own error.
        """
        field = OWNED.get(api_key)
        owner = None if field is None else self._find_owner(field, getattr(request, field))
        if owner is None or owner.ownership_epoch != request.ownership_epoch:
            return None
        return owner.broker_id

    def _is_any_node(self, connection: Peer) -> bool:
        """Return whether a peer is a voter or a registered broker."""
        brokers, named = self._brokers(), self._node_ids(connection)
        if named:
            ids = [int(node_id) for node_id in named if _NODE_ID.fullmatch(node_id)]
            return any(node_id in self._voters or node_id in brokers for node_id in ids)
        if brokers is not self._hosts_of:
            self._hosts_of = brokers
            self._node_hosts = frozenset(self._voters.values()).union(
                normal_host(endpoint.host)
                for broker in brokers.values()
                for endpoint in broker.end_points
            )
        return not self._node_hosts.isdisjoint(connection.certificate_names)

    def _node_ids(self, connection: Peer) -> frozenset[str]:
        """Return the node ids that a peer's principal or certificate spells out."""
        kind, name = connection.principal.kind, connection.principal.name
        length = len(self._before) + len(self._after)
        if kind == self._kind and self._before + self._after and len(name) > length:
            node_id = name[len(self._before) : len(name) - len(self._after)]
            if name == f"{self._before}{node_id}{self._after}":
                return frozenset({node_id})
        return frozenset(
            name.removeprefix(NODE_URI)
            for name in connection.certificate_names
            if name.startswith(NODE_URI)
        )

    def _hosts(self, node_id: int) -> frozenset[str] | None:
        """Return the hosts of a node as configured or registered, or None if no node has the id."""
        voter = self._voters.get(node_id)
        if voter is not None:
            return frozenset({voter})
        broker = self._brokers().get(node_id)
        if broker is None:
            return None
        return frozenset(normal_host(endpoint.host) for endpoint in broker.end_points)
