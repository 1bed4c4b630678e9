"""Typed calls: versions are agreed once; a malformed answer is an error, not a crash."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raft.net import Listener, NetError, Reason, ServerConnection, parse_request_header, run
from raft.net.header import response_header
from raft.net.rpc import open_rpc
from records.codec import decode_message, encode_message
from records.rpc.cluster import ApiVersionsRequest, ApiVersionsResponse
from records.rpc.quorum import DescribeQuorumRequest, DescribeQuorumResponse

API_VERSIONS, DESCRIBE_QUORUM = 18, 55
FIRST_FLEXIBLE = {API_VERSIONS: 3, DESCRIBE_QUORUM: 0}
QUESTION = DescribeQuorumRequest(topics=())
ANSWER = DescribeQuorumResponse(topics=())


def ranges(**last_versions: int) -> tuple[ApiVersionsResponse.ApiVersion, ...]:
    keys = {"api_versions": API_VERSIONS, "describe": DESCRIBE_QUORUM}
    return tuple(
        ApiVersionsResponse.ApiVersion(api_key=keys[name], min_version=0, max_version=last)
        for name, last in last_versions.items()
    )


class Server:
    """Serves ApiVersions up to a given version, and DescribeQuorum with a given answer."""

    def __init__(
        self,
        *,
        api_versions: int = 4,
        describe: int = 2,
        answer: Callable[[int], bytes] = lambda version: encode_message(ANSWER, version),
    ) -> None:
        self.ranges = ranges(api_versions=api_versions, describe=describe)
        self.newest = api_versions
        self.answer = answer
        self.seen: list[tuple[int, int]] = []

    def handle(self, connection: ServerConnection, frame: bytes | memoryview) -> bytes:  # noqa: ARG002
        header = parse_request_header(frame, FIRST_FLEXIBLE)
        self.seen.append((header.api_key, header.api_version))
        if header.api_key == DESCRIBE_QUORUM:
            head = response_header(header.correlation_id, flexible=True)
            return head + self.answer(header.api_version)
        head = response_header(header.correlation_id, flexible=False)
        if header.api_version > self.newest:
            refusal = ApiVersionsResponse(error_code=35, api_keys=self.ranges)
            return head + encode_message(refusal, 0)
        decode_message(ApiVersionsRequest, frame[header.body_at :], header.api_version)
        return head + encode_message(ApiVersionsResponse(api_keys=self.ranges), header.api_version)


def ask(server: Server) -> DescribeQuorumResponse:
    """Open a connection to the server and describe the quorum."""

    async def main() -> DescribeQuorumResponse:
        listener = Listener(server.handle, name="test")
        await listener.start("127.0.0.1", 0)
        try:
            async with await open_rpc("127.0.0.1", listener.port, timeout_ms=5_000) as rpc:
                return await rpc.call(QUESTION, DescribeQuorumResponse)
        finally:
            await listener.close()

    return run(main())


def test_an_rpc_client_uses_the_highest_version_that_both_sides_support():
    server = Server(describe=1)
    assert ask(server) == ANSWER
    assert server.seen == [(API_VERSIONS, 4), (DESCRIBE_QUORUM, 1)]


def test_an_rpc_client_repeats_api_versions_at_the_version_of_an_older_server():
    server = Server(api_versions=2)
    assert ask(server) == ANSWER
    assert [version for key, version in server.seen if key == API_VERSIONS] == [4, 2]


def test_a_call_of_an_api_that_the_server_lacks_raises_an_error_that_names_the_api():
    server = Server()
    server.ranges = ranges(api_versions=4)
    with pytest.raises(NetError, match="does not serve DescribeQuorumRequest") as caught:
        ask(server)
    assert caught.value.reason is Reason.UNSUPPORTED


def test_an_rpc_client_raises_an_error_with_field_and_byte_for_a_malformed_response():
    server = Server(answer=lambda _: b"\x00")
    with pytest.raises(NetError, match="error_code at byte 0") as caught:
        ask(server)
    assert caught.value.reason is Reason.BAD_ANSWER
