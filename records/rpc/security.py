"""SASL, access rules, quotas, SCRAM credentials, delegation tokens and forwarded requests.

Source: KIP-43 and KIP-152 (SASL), KIP-48 (tokens), KIP-140 and KIP-290 (access rules), KIP-546
(quotas), KIP-554 (SCRAM), KIP-590 (forwarding).
"""

from typing import Annotated

from records.rpc.base import Request, Response
from records.schema import Message
from records.wire import (
    IGNORABLE,
    Array,
    Bool,
    Bytes,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    String,
    since,
    tag,
)


class DescribeAclsRequest(Request, key=29, versions="1-3", flexible="2+"):
    """Asks for the access rules that match a filter. Source: KIP-140, KIP-290."""

    resource_type_filter: Int8
    resource_name_filter: String | None
    pattern_type_filter: Int8 = 3
    principal_filter: String | None
    host_filter: String | None
    operation: Int8
    permission_type: Int8


class DescribeAclsResponse(Response, key=29, versions="1-3", flexible="2+"):
    """Returns the access rules by resource. Source: KIP-140, KIP-290."""

    class DescribeAclsResource(Message):
        class AclDescription(Message):
            principal: String
            host: String
            operation: Int8
            permission_type: Int8

        resource_type: Int8
        resource_name: String
        pattern_type: Int8 = 3
        acls: Array[AclDescription]

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None
    resources: Array[DescribeAclsResource]


class CreateAclsRequest(Request, key=30, versions="1-3", flexible="2+"):
    """Adds access rules. Source: KIP-140, KIP-290."""

    class AclCreation(Message):
        resource_type: Int8
        resource_name: String
        resource_pattern_type: Int8 = 3
        principal: String
        host: String
        operation: Int8
        permission_type: Int8

    creations: Array[AclCreation]


class CreateAclsResponse(Response, key=30, versions="1-3", flexible="2+"):
    """Returns a result for each rule. Source: KIP-140."""

    class AclCreationResult(Message):
        error_code: Int16 = 0
        error_message: String | None

    throttle_time_ms: Int32 = 0
    results: Array[AclCreationResult]


class DeleteAclsRequest(Request, key=31, versions="1-3", flexible="2+"):
    """Removes the access rules that match filters. Source: KIP-140, KIP-290."""

    class DeleteAclsFilter(Message):
        resource_type_filter: Int8
        resource_name_filter: String | None
        pattern_type_filter: Int8 = 3
        principal_filter: String | None
        host_filter: String | None
        operation: Int8
        permission_type: Int8

    filters: Array[DeleteAclsFilter]


class DeleteAclsResponse(Response, key=31, versions="1-3", flexible="2+"):
    """Returns the removed rules of each filter. Source: KIP-140, KIP-290."""

    class DeleteAclsFilterResult(Message):
        class DeleteAclsMatchingAcl(Message):
            error_code: Int16 = 0
            error_message: String | None
            resource_type: Int8
            resource_name: String
            pattern_type: Int8 = 3
            principal: String
            host: String
            operation: Int8
            permission_type: Int8

        error_code: Int16 = 0
        error_message: String | None
        matching_acls: Array[DeleteAclsMatchingAcl]

    throttle_time_ms: Int32 = 0
    filter_results: Array[DeleteAclsFilterResult]


class CreateDelegationTokenRequest(Request, key=38, versions="1-3", flexible="2+"):
    """Asks for a new delegation token. Source: KIP-48."""

    class CreatableRenewers(Message):
        principal_type: String
        principal_name: String

    owner_principal_type: Annotated[String | None, since(3)] = ""
    owner_principal_name: Annotated[String | None, since(3)] = ""
    renewers: Array[CreatableRenewers]
    max_lifetime_ms: Int64


class CreateDelegationTokenResponse(Response, key=38, versions="1-3", flexible="2+"):
    """Returns the new token. Source: KIP-48."""

    error_code: Int16 = 0
    principal_type: String
    principal_name: String
    token_requester_principal_type: Annotated[String, since(3)] = ""
    token_requester_principal_name: Annotated[String, since(3)] = ""
    issue_timestamp_ms: Int64
    expiry_timestamp_ms: Int64
    max_timestamp_ms: Int64
    token_id: String
    hmac: Bytes
    throttle_time_ms: Int32 = 0


class RenewDelegationTokenRequest(Request, key=39, versions="1-2", flexible="2+"):
    """Extends the validity of a delegation token. Source: KIP-48."""

    hmac: Bytes
    renew_period_ms: Int64


class RenewDelegationTokenResponse(Response, key=39, versions="1-2", flexible="2+"):
    """Returns the new end of the token's validity. Source: KIP-48."""

    error_code: Int16 = 0
    expiry_timestamp_ms: Int64
    throttle_time_ms: Int32 = 0


class ExpireDelegationTokenRequest(Request, key=40, versions="1-2", flexible="2+"):
    """Ends the validity of a delegation token. Source: KIP-48."""

    hmac: Bytes
    expiry_time_period_ms: Int64


class ExpireDelegationTokenResponse(Response, key=40, versions="1-2", flexible="2+"):
    """Returns the end of the token's validity. Source: KIP-48."""

    error_code: Int16 = 0
    expiry_timestamp_ms: Int64
    throttle_time_ms: Int32 = 0


class DescribeDelegationTokenRequest(Request, key=41, versions="1-3", flexible="2+"):
    """Asks for the delegation tokens of owners. Source: KIP-48."""

    class DescribeDelegationTokenOwner(Message):
        principal_type: String
        principal_name: String

    owners: Array[DescribeDelegationTokenOwner] | None


class DescribeDelegationTokenResponse(Response, key=41, versions="1-3", flexible="2+"):
    """Returns the delegation tokens. Source: KIP-48."""

    class DescribedDelegationToken(Message):
        class DescribedDelegationTokenRenewer(Message):
            principal_type: String
            principal_name: String

        principal_type: String
        principal_name: String
        token_requester_principal_type: Annotated[String, since(3)] = ""
        token_requester_principal_name: Annotated[String, since(3)] = ""
        issue_timestamp: Int64
        expiry_timestamp: Int64
        max_timestamp: Int64
        token_id: String
        hmac: Bytes
        renewers: Array[DescribedDelegationTokenRenewer]

    error_code: Int16 = 0
    tokens: Array[DescribedDelegationToken]
    throttle_time_ms: Int32 = 0


class DescribeClientQuotasRequest(Request, key=48, versions="0-1", flexible="1+"):
    """Asks for the quotas of clients. Source: KIP-546."""

    class ComponentData(Message):
        entity_type: String
        match_type: Int8
        match: String | None

    components: Array[ComponentData]
    strict: Bool


class DescribeClientQuotasResponse(Response, key=48, versions="0-1", flexible="1+"):
    """Returns the quotas of each entity. Source: KIP-546."""

    class EntryData(Message):
        class EntityData(Message):
            entity_type: String
            entity_name: String | None

        class ValueData(Message):
            key: String
            value: Float64

        entity: Array[EntityData]
        values: Array[ValueData]

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None
    entries: Array[EntryData] | None


class AlterClientQuotasRequest(Request, key=49, versions="0-1", flexible="1+"):
    """Changes the quotas of clients. Source: KIP-546."""

    class EntryData(Message):
        class EntityData(Message):
            entity_type: String
            entity_name: String | None

        class OpData(Message):
            key: String
            value: Float64
            remove: Bool

        entity: Array[EntityData]
        ops: Array[OpData]

    entries: Array[EntryData]
    validate_only: Bool


class AlterClientQuotasResponse(Response, key=49, versions="0-1", flexible="1+"):
    """Returns a result for each entity. Source: KIP-546."""

    class EntryData(Message):
        class EntityData(Message):
            entity_type: String
            entity_name: String | None

        error_code: Int16 = 0
        error_message: String | None
        entity: Array[EntityData]

    throttle_time_ms: Int32 = 0
    entries: Array[EntryData]


class DescribeUserScramCredentialsRequest(Request, key=50, versions="0"):
    """Asks for the SCRAM credentials of users. Source: KIP-554."""

    class UserName(Message):
        name: String

    users: Array[UserName] | None


class DescribeUserScramCredentialsResponse(Response, key=50, versions="0"):
    """Returns the mechanisms of each user. Source: KIP-554."""

    class DescribeUserScramCredentialsResult(Message):
        class CredentialInfo(Message):
            mechanism: Int8
            iterations: Int32

        user: String
        error_code: Int16 = 0
        error_message: String | None
        credential_infos: Array[CredentialInfo]

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None
    results: Array[DescribeUserScramCredentialsResult]


class AlterUserScramCredentialsRequest(Request, key=51, versions="0"):
    """Changes the SCRAM credentials of users. Source: KIP-554."""

    class ScramCredentialDeletion(Message):
        name: String
        mechanism: Int8

    class ScramCredentialUpsertion(Message):
        name: String
        mechanism: Int8
        iterations: Int32
        salt: Bytes
        salted_password: Bytes

    deletions: Array[ScramCredentialDeletion]
    upsertions: Array[ScramCredentialUpsertion]


class AlterUserScramCredentialsResponse(Response, key=51, versions="0"):
    """Returns a result for each user. Source: KIP-554."""

    class AlterUserScramCredentialsResult(Message):
        user: String
        error_code: Int16 = 0
        error_message: String | None

    throttle_time_ms: Int32 = 0
    results: Array[AlterUserScramCredentialsResult]


class SaslHandshakeRequest(Request, key=17, versions="0-1", flexible="none"):
    """Asks for a SASL mechanism. Source: KIP-43."""

    mechanism: String


class SaslHandshakeResponse(Response, key=17, versions="0-1", flexible="none"):
    """Returns the mechanisms of the broker. Source: KIP-43."""

    error_code: Int16 = 0
    mechanisms: Array[String]


class SaslAuthenticateRequest(Request, key=36, versions="0-2", flexible="2+"):
    """Carries a client's SASL bytes. Source: KIP-152."""

    auth_bytes: Bytes


class SaslAuthenticateResponse(Response, key=36, versions="0-2", flexible="2+"):
    """Carries the broker's SASL bytes. Source: KIP-152, KIP-368."""

    error_code: Int16 = 0
    error_message: String | None
    auth_bytes: Bytes
    session_lifetime_ms: Annotated[Int64, since(1), IGNORABLE] = 0


class DefaultPrincipalData(Message, versions="0", flexible="0+"):
    """The principal of a forwarded request, after its version as an int16. Source: KIP-590."""

    type: String
    name: String
    token_authenticated: Bool


class EnvelopeRequest(Request, key=58, versions="0", flexible="0+"):
    """Forwards a client's request with the client's principal. Source: KIP-590."""

    request_data: Bytes  # header and body
    request_principal: Bytes | None
    client_host_address: Bytes
    client_request_version: Annotated[Int16, tag(1000)] = -1  # ours; -1: as in the request's header


class EnvelopeResponse(Response, key=58, versions="0", flexible="0+"):
    """Returns the response to a forwarded request, or an error. Source: KIP-590."""

    response_data: Bytes | None = None
    error_code: Int16
