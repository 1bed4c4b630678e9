"""Answers requests about SASL, SCRAM credentials and delegation tokens.

SCRAM credentials are described from the cluster's image and changed by the controller. Tokens may
not be asked for. A SASL handshake that arrives here is out of its order (the gate of a listener
with SASL answers the others): ILLEGAL_SASL_STATE.

Source: KIP-43, KIP-48, KIP-554; upstream's ScramImage, ScramControlManager and
DelegationTokenManager, whose codes and texts these are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from coordinator.controller.access import Client
from coordinator.controller.image import MetadataImage
from coordinator.controller.refusals import refuse
from coordinator.errors import CoordinatorError
from diskless.apis.handler import RequestContext, make_handler
from diskless.cluster import Cluster
from raft.net.authentication import announced
from raft.net.handlers import Served
from records.kafka_errors import ErrorCode
from records.metadata import UserScramCredentialRecord
from records.rpc import security as rpc

MAX_ITEMS: Final = 10_000
"""Users of one request; of more, so many are answered with POLICY_VIOLATION."""

TOO_MANY: Final = f"A request may name at most {MAX_ITEMS} of them."


# --- SCRAM --------------------------------------------------------------------------------------

_Described = rpc.DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult


def describe_scram(
    request: rpc.DescribeUserScramCredentialsRequest, image: MetadataImage
) -> rpc.DescribeUserScramCredentialsResponse:
    """Describe the mechanisms and iterations of users; without names, those of all users."""
    response = rpc.DescribeUserScramCredentialsResponse
    users = request.users or ()
    if len(users) > MAX_ITEMS:
        return response(error_code=ErrorCode.POLICY_VIOLATION, error_message=TOO_MANY, results=())
    known: dict[str, list[UserScramCredentialRecord]] = {}
    wanted = {user.name for user in users}
    for record in image.security.scrams.values():
        if not users or record.name in wanted:
            known.setdefault(record.name, []).append(record)
    names = Counter(user.name for user in users) if users else Counter(known.keys())
    results = tuple(_describe_user(name, times, known) for name, times in names.items())
    return response(error_message="", results=results)


def _describe_user(
    name: str, times: int, known: Mapping[str, Sequence[UserScramCredentialRecord]]
) -> _Described:
    if times > 1:
        code = ErrorCode.DUPLICATE_RESOURCE
        text = (
            f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        )
        return _Described(user=name, error_code=code, error_message=text, credential_infos=())
    if name not in known:
        code = ErrorCode.RESOURCE_NOT_FOUND
        text = f"Attempt to describe a user credential that does not exist: {name}"
        return _Described(user=name, error_code=code, error_message=text, credential_infos=())
    return _Described(
        user=name,
        error_message=None,
        credential_infos=tuple(
            _Described.CredentialInfo(mechanism=record.mechanism, iterations=record.iterations)
            for record in sorted(known[name], key=lambda record: record.mechanism)
        ),
    )


async def alter_scram(
    request: rpc.AlterUserScramCredentialsRequest,
    cluster: Cluster,
    client: Client | None = None,
) -> rpc.AlterUserScramCredentialsResponse:
    """Forward changes of SCRAM credentials to the controller."""
    try:
        return await cluster.ask_controller(request, rpc.AlterUserScramCredentialsResponse, client)
    except CoordinatorError as error:
        refusal = refuse(request, ErrorCode.REQUEST_TIMED_OUT, error.message)
        assert isinstance(refusal, rpc.AlterUserScramCredentialsResponse), f"{refusal}"
        return refusal


# --- delegation tokens --------------------------------------------------------------------------

NOT_ALLOWED: Final = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
"""The code of a listener without authentication, which is checked before any other."""

FIRST_WITH_OWNER: Final = 3  # of CreateDelegationToken
ANONYMOUS: Final = ("User", "ANONYMOUS")


def create_token(
    request: rpc.CreateDelegationTokenRequest, version: int
) -> rpc.CreateDelegationTokenResponse:
    """Refuse to create a delegation token."""
    owner = ANONYMOUS
    if version >= FIRST_WITH_OWNER and request.owner_principal_name:
        owner = (request.owner_principal_type or "", request.owner_principal_name)
    requester = ANONYMOUS if version >= FIRST_WITH_OWNER else ("", "")
    return rpc.CreateDelegationTokenResponse(
        error_code=NOT_ALLOWED,
        principal_type=owner[0],
        principal_name=owner[1],
        token_requester_principal_type=requester[0],
        token_requester_principal_name=requester[1],
        issue_timestamp_ms=-1,
        expiry_timestamp_ms=-1,
        max_timestamp_ms=-1,
        token_id="",
        hmac=b"",
    )


def handlers(cluster: Cluster) -> dict[int, Served]:
    """Return the handlers of requests about security, by api key."""

    def create(
        request: rpc.CreateDelegationTokenRequest, context: RequestContext
    ) -> rpc.CreateDelegationTokenResponse:
        return create_token(request, context.version)

    return {
        **announced(),
        38: make_handler(rpc.CreateDelegationTokenRequest, create),
        39: make_handler(
            rpc.RenewDelegationTokenRequest,
            lambda *_: rpc.RenewDelegationTokenResponse(
                error_code=NOT_ALLOWED, expiry_timestamp_ms=-1
            ),
        ),
        40: make_handler(
            rpc.ExpireDelegationTokenRequest,
            lambda *_: rpc.ExpireDelegationTokenResponse(
                error_code=NOT_ALLOWED, expiry_timestamp_ms=-1
            ),
        ),
        41: make_handler(
            rpc.DescribeDelegationTokenRequest,
            lambda *_: rpc.DescribeDelegationTokenResponse(error_code=NOT_ALLOWED, tokens=()),
        ),
        50: make_handler(
            rpc.DescribeUserScramCredentialsRequest,
            lambda request, _: describe_scram(request, cluster.image),
        ),
        51: make_handler(
            rpc.AlterUserScramCredentialsRequest,
            lambda request, context: alter_scram(request, cluster, context.client),
        ),
    }
