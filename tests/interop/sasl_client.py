"""A blocking client that authenticates with SASL PLAIN."""

from __future__ import annotations

from records.rpc.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from tests.raft.driver.client import Client


class SaslClient(Client):
    """A connection of one user to a listener with SASL."""

    def __init__(self, host: str, port: int, user: str, password: str, timeout_s: float) -> None:
        super().__init__(host, port, timeout_s=timeout_s)
        shaken = self.ask(SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, 1)
        assert not shaken.error_code, shaken
        token = f"\0{user}\0{password}".encode()
        answer = self.ask(SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse, 1)
        assert not answer.error_code, answer
