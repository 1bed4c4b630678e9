"""Settings of every node: its identity, its listeners, its log directory."""

from __future__ import annotations

from typing import Final

from esker.settings.addresses import INSECURE
from esker.settings.base import Setting
from esker.settings.values import (
    MEBIBYTE,
    MILLISECONDS,
    boolean,
    connections_by_address,
    integer,
    listeners,
    node_id_of,
    one_of,
    parse_endpoint,
    protocol_map,
    voters_of,
    words,
)
from raft.net import Limits
from raft.net.limits import UNLIMITED
from raft.net.logs import FORMATS, LEVELS, TEXT

SETTINGS: Final = (
    Setting(
        "process.roles",
        words,
        None,
        "Roles of this node: `controller`, `broker`, or `broker,controller`.",
    ),
    Setting("node.id", node_id_of, None, "This node's id, unique in the cluster."),
    Setting(
        "controller.quorum.voters",
        voters_of,
        None,
        "The quorum: `ID@HOST:PORT`, comma separated, the same on every node.",
    ),
    Setting(
        "controller.listener.names",
        words,
        ("CONTROLLER",),
        "Names of the listeners that serve the quorum; its nodes connect to the first. Further "
        "ones serve nodes and tools during a change of address or protocol.",
    ),
    Setting("listeners", listeners, None, "`NAME://HOST:PORT`, comma separated: what to bind."),
    Setting(
        INSECURE,
        boolean,
        False,
        "Lets a controller bind its listener beyond loopback without authentication; without it "
        "such a node does not start unless the listener has SASL, or SSL with ssl.client.auth="
        "required.",
    ),
    Setting(
        "advertised.listeners",
        listeners,
        {},
        "Addresses that clients connect to; default: the bound addresses.",
    ),
    Setting(
        "listener.security.protocol.map",
        protocol_map,
        {},
        "`NAME:PROTOCOL` for each listener: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL; default: "
        "the protocol of the listener's name, else PLAINTEXT.",
    ),
    Setting("log.dirs", words, (), "Directories of this node's logs; the first is used."),
    Setting("log.dir", str, "", "One directory, if `log.dirs` is not given."),
    Setting("metadata.log.dir", str, "", "Where the quorum's logs lie; default: `log.dirs`."),
    Setting(
        "socket.request.max.bytes",
        integer(1024, 256 * MEBIBYTE),  # beyond, raft.net takes a length for a stray protocol
        100 * MEBIBYTE,
        "Maximum bytes of one request.",
    ),
    Setting(
        "socket.send.buffer.bytes",
        integer(-1, 2**31 - 1),
        Limits().send_buffer_bytes,
        "Bytes of responses that the kernel keeps for each connection, about; -1 or 0: its choice.",
    ),
    Setting(
        "max.connections",
        integer(1, 2**20),
        Limits().max_connections,
        "Maximum connections of each listener; fewer if the limit of open files is lower.",
    ),
    Setting(
        "max.connections.per.ip",
        integer(0, UNLIMITED),
        UNLIMITED,
        "Maximum connections of one address to each listener.",
    ),
    Setting(
        "max.connections.per.ip.overrides",
        connections_by_address,
        {},
        "The same for single addresses: `ADDRESS:COUNT`, comma separated.",
    ),
    Setting(
        "connections.max.idle.ms",
        MILLISECONDS,
        600_000,
        "Milliseconds after which an idle connection is closed.",
    ),
    Setting(
        "esker.metrics.listener",
        parse_endpoint,
        None,
        "`HOST:PORT` that serves `/metrics` and `/health`; default: neither is served.",
    ),
    Setting(
        "esker.log.format",
        one_of(*FORMATS),
        TEXT,
        "Format of the log on standard error: `text`, or `json`: an object in each line.",
    ),
    Setting(
        "esker.log.level",
        one_of(*LEVELS),
        "INFO",
        "The least level that is logged: `DEBUG`, `INFO`, `WARNING` or `ERROR`.",
    ),
    Setting(
        "esker.metrics.max.series",
        integer(0, 100_000),
        1_000,
        "Most series of a metric by topic, partition or group; 0: none of these metrics.",
    ),
)
