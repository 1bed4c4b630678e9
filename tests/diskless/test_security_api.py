"""Access rules, credentials, tokens and telemetry of a broker without any.

The codes and texts are those of Apache Kafka 4.3.1 without an authorizer, for the same requests.
"""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

import pytest

from coordinator.controller.image import MetadataImage
from coordinator.errors import CoordinatorError
from diskless.apis import acls, security, telemetry
from records.kafka_errors import ErrorCode
from records.rpc import API
from records.rpc import security as rpc
from records.rpc import telemetry as telemetry_rpc
from records.rpc.base import Request
from records.types import ZERO_UUID
from tests.diskless.calling import call
from tests.diskless.virtual_time import run


class NoController:
    """A cluster without users whose controllers do not answer."""

    image = MetadataImage()

    async def ask_controller(self, *_: Any) -> Any:
        raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no controller answers")


HANDLERS: Final = (
    security.handlers(NoController())
    | acls.handlers(NoController(), has_authorizer=False)
    | telemetry.handlers(lambda: UUID(int=9))
)
TOO_MANY: Final = 100_000
FILTER: Final[dict[str, Any]] = {"operation": 1, "permission_type": 1} | dict.fromkeys(
    ("resource_name_filter", "principal_filter", "host_filter")
)
RULE: Final = rpc.CreateAclsRequest.AclCreation(
    resource_type=2, resource_name="", principal="", host="", operation=3, permission_type=3
)
RULES: Final = rpc.DeleteAclsRequest.DeleteAclsFilter(resource_type_filter=2, **FILTER)


def ask(request: Request, version: int | None = None) -> Any:
    """Send a request to its handler, in its newest version by default."""
    schema = request.schema()
    assert schema.key is not None
    version = schema.versions.last if version is None else version
    answers = []

    async def told() -> None:
        answers.append(await call(HANDLERS, request, API[schema.key or 0].response, version))

    run(told)
    return answers[0]


def test_sasl_requests_get_illegal_sasl_state_on_a_listener_without_authentication() -> None:
    for version in (0, 1):
        shaken = ask(rpc.SaslHandshakeRequest(mechanism="PLAIN"), version)
        assert (shaken.error_code, shaken.mechanisms) == (34, ())
    for version in (0, 1, 2):
        answer = ask(rpc.SaslAuthenticateRequest(auth_bytes=b"\0ann\0secret"), version)
        assert (answer.error_code, bytes(answer.auth_bytes)) == (34, b"")


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_broker_answers_acl_requests_with_security_disabled(version: int) -> None:
    described = ask(rpc.DescribeAclsRequest(resource_type_filter=2, **FILTER), version)
    assert (described.error_code, described.error_message, described.resources) == (
        54, "No Authorizer is configured on the broker", (),
    )  # fmt: skip
    refusal = (54, "No Authorizer is configured.")
    created = ask(rpc.CreateAclsRequest(creations=(RULE,) * 2), version).results
    assert [(one.error_code, one.error_message) for one in created] == [refusal] * 2
    deleted = ask(rpc.DeleteAclsRequest(filters=(RULES,)), version).filter_results
    assert [(one.error_code, one.error_message) for one in deleted] == [refusal]
    assert deleted[0].matching_acls == ()


def test_a_broker_without_users_describes_no_scram_credentials() -> None:
    request = rpc.DescribeUserScramCredentialsRequest
    for users in (None, ()):
        answer = ask(request(users=users))
        assert (answer.error_code, answer.results) == (0, ())
    users = tuple(request.UserName(name=name) for name in ("ann", "", "bob", "bob"))
    results = ask(request(users=users)).results
    assert [(one.user, one.error_code) for one in results] == [("ann", 91), ("", 91), ("bob", 92)]
    assert ask(request(users=users[:1] * TOO_MANY)).error_code == 44


def test_changes_of_scram_credentials_time_out_without_a_controller() -> None:
    request = rpc.AlterUserScramCredentialsRequest
    deletion = request.ScramCredentialDeletion(name="ann", mechanism=1)
    (result,) = ask(request(deletions=(deletion,), upsertions=())).results
    assert (result.user, result.error_code) == ("ann", 7)


def test_a_broker_refuses_delegation_tokens_on_a_listener_without_authentication() -> None:
    create = rpc.CreateDelegationTokenRequest
    new = ask(create(renewers=(), max_lifetime_ms=-1), 1)
    assert (new.error_code, new.principal_name, new.expiry_timestamp_ms) == (64, "ANONYMOUS", -1)
    owned = create(
        owner_principal_type="User", owner_principal_name="ann", renewers=(), max_lifetime_ms=-1
    )
    new = ask(owned)
    assert (new.error_code, new.principal_name, new.token_requester_principal_name) == (
        64, "ann", "ANONYMOUS",
    )  # fmt: skip
    for request in (
        rpc.RenewDelegationTokenRequest(hmac=b"", renew_period_ms=1),
        rpc.ExpireDelegationTokenRequest(hmac=b"", expiry_time_period_ms=1),
        rpc.DescribeDelegationTokenRequest(owners=None),
    ):
        assert ask(request).error_code == 64


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_broker_refuses_a_request_with_100_000_acl_rules_with_policy_violation(
    version: int,
) -> None:
    created = ask(rpc.CreateAclsRequest(creations=(RULE,) * TOO_MANY), version).results
    deleted = ask(rpc.DeleteAclsRequest(filters=(RULES,) * TOO_MANY), version).filter_results
    for results in (created, deleted):
        assert {one.error_code for one in results} == {44}
        assert len(results) < TOO_MANY


def test_a_broker_requests_no_telemetry_from_clients_and_drops_pushed_telemetry() -> None:
    ask_for = telemetry_rpc.GetTelemetrySubscriptionsRequest
    new = ask(ask_for(client_instance_id=ZERO_UUID))
    assert (new.error_code, new.client_instance_id, new.requested_metrics) == (0, UUID(int=9), ())
    assert new == ask(ask_for(client_instance_id=UUID(int=9))), "the id stays"

    def push(**changes: Any) -> int:
        sound = {
            "client_instance_id": UUID(int=9),
            "subscription_id": new.subscription_id,
            "terminating": False,
            "compression_type": 4,
            "metrics": b"m",
        }
        return int(ask(telemetry_rpc.PushTelemetryRequest(**sound | changes)).error_code)

    assert push() == 0
    assert push(client_instance_id=ZERO_UUID) == 42
    assert push(subscription_id=new.subscription_id + 1) == 117
    assert push(compression_type=9) == 76
    assert push(metrics=b"m" * (1 << 20) + b"m") == 118
