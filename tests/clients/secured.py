"""One node with a listener of each secured protocol, and what clients need to connect to it.

The controller's listener is SASL_SSL, so that the node's own connections are secured, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.pki import Authority
from tests.ports import free_ports
from tests.processes import Process, run, start
from tests.quorum_processes import storage
from tests.waiting import wait_until

USER, PASSWORD = "alice", 'alice-"secret", =1'
NODE, NODE_PASSWORD = "node-1", "node-secret"
PROTOCOLS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
STORE_PASSWORD = "store-secret"


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def in_properties(text: str) -> str:
    return text.replace("\\", "\\\\")


def jaas(mechanism: str, user: str, password: str) -> str:
    module = PLAIN_MODULE if mechanism == "PLAIN" else SCRAM_MODULE
    return f"{module} required username={quoted(user)} password={quoted(password)};"


class SecuredNode:
    """A running broker and controller with three client listeners."""

    def __init__(
        self,
        home: Path,
        mechanisms: tuple[str, ...] = ("PLAIN",),
        more: str = "",
        format_options: tuple[str, ...] = (),
        token_file: Path | None = None,
        plain_users: Mapping[str, str] | None = None,
    ) -> None:
        """Write the settings of a node, and format its directory.

        Args:  plain_users: passwords of more users than alice.
               token_file: the token as which the node connects to its own controller, by
                   OAUTHBEARER; None: it connects by PLAIN.
        """
        self.home = home
        self.mechanisms = mechanisms
        self.ca = Authority()
        self.ca_file = self.ca.write(home / "ca.pem")
        self.client_file = self.ca.issue("client", hosts=()).write(home / "client.pem")
        server = self.ca.issue("server")
        server.write_pkcs12(home / "server.p12", STORE_PASSWORD, self.ca.certificate)
        controller, *clients = free_ports(4)
        self.ports = dict(zip(PROTOCOLS, clients, strict=True))
        self.controller = f"127.0.0.1:{controller}"  # SASL_SSL
        listeners = [f"{name}://127.0.0.1:{port}" for name, port in self.ports.items()]
        users = " ".join(
            f"user_{user}={quoted(password)}"
            for user, password in {USER: PASSWORD, **(plain_users or {})}.items()
        )
        plain = f"{PLAIN_MODULE} required {users};"
        own = (
            f'{PLAIN_MODULE} required username="{NODE}" password="{NODE_PASSWORD}" '
            f'user_{NODE}="{NODE_PASSWORD}";'
        )
        self.file = home / "node.properties"
        self.file.write_text(
            "process.roles=broker,controller\n"
            "node.id=1\n"
            f"controller.quorum.voters=1@127.0.0.1:{controller}\n"
            f"listeners=CONTROLLER://127.0.0.1:{controller},{','.join(listeners)}\n"
            "listener.security.protocol.map=CONTROLLER:SASL_SSL,"
            + ",".join(f"{name}:{name}" for name in PROTOCOLS)
            + "\n"
            f"ssl.keystore.location={home / 'server.p12'}\n"
            f"ssl.keystore.password={STORE_PASSWORD}\n"
            f"ssl.truststore.location={self.ca_file}\n"
            "listener.name.ssl.ssl.client.auth=required\n"
            "sasl.enabled.mechanisms="
            + ",".join(mechanisms)
            + "\n"
            + (
                "listener.name.controller.sasl.enabled.mechanisms=PLAIN\n"
                f"listener.name.controller.plain.sasl.jaas.config={own}\n"
                if token_file is None
                else "listener.name.controller.sasl.enabled.mechanisms=OAUTHBEARER\n"
                "sasl.mechanism.controller.protocol=OAUTHBEARER\n"
                f"sasl.oauthbearer.token.endpoint.url={token_file.as_uri()}\n"
            )
            + f"listener.name.sasl_ssl.plain.sasl.jaas.config={in_properties(plain)}\n"
            f"listener.name.sasl_plaintext.plain.sasl.jaas.config={in_properties(plain)}\n"
            f"log.dirs={home / 'logs'}\n"
            f"esker.storage.directory.path={home / 'objects'}\n"
            "controller.quorum.election.timeout.ms=400\n"
            "group.initial.rebalance.delay.ms=0\n" + more
        )
        self.file.chmod(0o600)
        cluster_id = storage("random-uuid").strip()
        words = ("--config", str(self.file), "--cluster-id", cluster_id, *format_options)
        storage("format", *words)
        self.process: Process | None = None
        self.output = home / "node.log"

    def address(self, protocol: str) -> str:
        return f"127.0.0.1:{self.ports[protocol]}"

    def command_config(
        self, protocol: str, mechanism: str = "PLAIN", user: str = USER, password: str = PASSWORD
    ) -> Path:
        """Write a file of client properties that Kafka's tools and ours read alike."""
        lines = [f"security.protocol={protocol}"]
        if protocol.endswith("SSL"):
            lines += [f"ssl.truststore.location={self.ca_file}", "ssl.truststore.type=PEM"]
        if protocol == "SSL":
            lines += [f"ssl.keystore.location={self.client_file}", "ssl.keystore.type=PEM"]
        if protocol.startswith("SASL"):
            line = in_properties(jaas(mechanism, user, password))
            lines += [f"sasl.mechanism={mechanism}", f"sasl.jaas.config={line}"]
        path = self.home / f"client-{protocol}-{mechanism}-{user}-{len(password)}.properties"
        path.write_text("\n".join(lines) + "\n")
        return path

    def token_config(self, protocol: str, token_file: Path) -> Path:
        """Write client properties, for Kafka's tools and ours, of a user with a token in a file."""
        module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLogin"
        lines = [
            f"security.protocol={protocol}",
            "sasl.mechanism=OAUTHBEARER",
            f"sasl.jaas.config={module}Module required;",
            f"sasl.login.callback.handler.class={module}CallbackHandler",
            f"sasl.oauthbearer.token.endpoint.url={token_file.as_uri()}",
        ]
        if protocol.endswith("SSL"):
            lines += [f"ssl.truststore.location={self.ca_file}", "ssl.truststore.type=PEM"]
        path = self.home / f"client-{protocol}-{token_file.name}.properties"
        path.write_text("\n".join(lines) + "\n")
        return path

    def run(self, *words: str, config: Path, protocol: str = "SASL_SSL"):
        """An `esker` command against this node."""
        bootstrap = ("--bootstrap-server", self.address(protocol))
        return run("esker", *words, *bootstrap, "--command-config", str(config))

    def __enter__(self) -> Self:
        with self.output.open("ab") as log:
            self.process = start("esker", "start", str(self.file), output=log)
        try:
            wait_until(self._is_ready, f"the node is ready; see {self.output}")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.output.read_text()[-3_000:]
        return "is ready at" in self.output.read_text()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait()
