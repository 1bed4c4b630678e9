"""Nodes of a quorum that authenticate by tokens: renewed in time under load, and too late."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Final

import pytest

from tests.clients.steady_load import Load, read_all
from tests.clients.test_security_change import NEW, NODES, TOPIC, Cluster
from tests.processes import run
from tests.raft.net.oauth_world import AUDIENCE, ISSUER, token, write_jwks
from tests.waiting import wait_until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

TOKEN_S: Final = 20
SKEW_S: Final = 1
RENEWED_S: Final = 100  # how long tokens are renewed in time
OVER: Final = "the session of User:node-"


class TokenCluster(Cluster):
    """A cluster whose nodes connect to controllers by OAUTHBEARER, with enforced identity."""

    def write(self, node: int, controllers: tuple[str, ...], own: tuple[str, ...]) -> None:
        self.identity = "enforce" if controllers == NEW else ""
        super().write(node, controllers, own)
        if controllers != NEW:
            return
        listener = "listener.name.controller_new."
        lines = [
            line
            for line in self.file(node).read_text().splitlines()
            if not line.startswith(f"{listener}plain")
        ]
        lines += [
            f"{listener}sasl.enabled.mechanisms=OAUTHBEARER",
            "sasl.mechanism.controller.protocol=OAUTHBEARER",
            f"sasl.oauthbearer.token.endpoint.url={self.token_file(node).as_uri()}",
            f"sasl.oauthbearer.jwks.endpoint.url={write_jwks(self.home / 'jwks.json')}",
            f"sasl.oauthbearer.expected.audience={AUDIENCE}",
            f"sasl.oauthbearer.expected.issuer={ISSUER}",
            f"sasl.oauthbearer.clock.skew.seconds={SKEW_S}",
        ]
        self.file(node).write_text("\n".join(lines) + "\n")

    def token_file(self, node: int) -> Path:
        return self.home / f"token{node}"

    def renew_tokens(self, lifetime_s: int = TOKEN_S) -> None:
        """Replace all nodes' tokens."""
        for node in NODES:
            new = self.home / "token.new"
            new.write_text(token(sub=f"node-{node}", exp=int(time.time()) + lifetime_s))
            new.replace(self.token_file(node))


def test_nodes_renew_their_sessions_under_load_and_return_after_tokens_that_came_too_late(
    tmp_path: Path,
) -> None:
    cluster = TokenCluster(tmp_path)
    cluster.renew_tokens()
    ends = threading.Event()

    def keep_renewing() -> None:
        while not ends.wait(1):
            cluster.renew_tokens()

    renewing = threading.Thread(target=keep_renewing)
    try:
        renewing.start()
        for node in NODES:
            cluster.restart(node, NEW, NEW)
        created = ("topics", "create", TOPIC, *cluster.secured())
        wait_until(lambda: run("esker", *created).returncode == 0, "the topic exists")
        with Load(TOPIC, cluster.client("NEW")) as load:
            load.wait_for_more("at first")
            end = time.monotonic() + RENEWED_S
            load.gap_s()
            wait_until(lambda: time.monotonic() > end, "tokens end and are renewed", deadline_s=200)
            print(f"longest gap {load.gap_s():.2f} s while tokens of {TOKEN_S} s are renewed")
            assert not [node for node in NODES if OVER in cluster.log(node)]
            ends.set()
            renewing.join()
            wait_until(
                lambda: any(OVER in cluster.log(node) for node in NODES), "sessions have ended"
            )
            cluster.renew_tokens(600)
            load.wait_for_more("with the tokens that came too late")
            print(f"longest gap {load.gap_s():.2f} s after tokens were not renewed in time")
        assert not load.failed
        assert not load.refused
        read = read_all(TOPIC, cluster.client("NEW"), len(load.acknowledged))
        assert read == load.acknowledged
    finally:
        ends.set()
        cluster.stop()
