"""Golden bytes: the small administrative requests, field by field, at their last versions.

kio, whose codecs are generated from Kafka's schemas by other people, wrote the same bytes.

Source: KIP-43, 48, 113, 133, 140, 290, 455, 460, 496, 546, 554, 664, 714, 827, 994, 1142.
"""

from __future__ import annotations

from uuid import UUID

import pytest

from records.codec import decode_message, encode_message
from records.rpc import configs, groups, replicas, security, telemetry, transactions
from tests.records.golden import Golden, golden_name

GOLDEN: list[Golden] = [
    Golden(
        security.SaslHandshakeRequest(mechanism="foo"),
        1,
        "0003 666f6f",  # mechanism: foo
    ),
    Golden(
        security.SaslHandshakeResponse(error_code=42, mechanisms=("foo",)),
        1,
        "002a "  # error_code: 42
        "00000001 "  # mechanisms: 1 element
        "0003 666f6f",  # mechanisms: foo
    ),
    Golden(
        security.SaslAuthenticateRequest(auth_bytes=b"\n\x0b"),
        2,
        "03 0a0b "  # auth_bytes: bytes
        "00",  # no tagged fields
    ),
    Golden(
        security.SaslAuthenticateResponse(
            error_code=42, error_message="no", auth_bytes=b"\n\x0b", session_lifetime_ms=1
        ),
        2,
        "002a "  # error_code: 42
        "03 6e6f "  # error_message: no
        "03 0a0b "  # auth_bytes: bytes
        "0000000000000001 "  # session_lifetime_ms: 1
        "00",  # no tagged fields
    ),
    Golden(
        security.DescribeAclsRequest(
            resource_type_filter=1,
            resource_name_filter="foo",
            pattern_type_filter=2,
            principal_filter="foo",
            host_filter="foo",
            operation=3,
            permission_type=4,
        ),
        3,
        "01 "  # resource_type_filter: 1
        "04 666f6f "  # resource_name_filter: foo
        "02 "  # pattern_type_filter: 2
        "04 666f6f "  # principal_filter: foo
        "04 666f6f "  # host_filter: foo
        "03 "  # operation: 3
        "04 "  # permission_type: 4
        "00",  # no tagged fields
    ),
    Golden(
        security.DescribeAclsResponse(
            throttle_time_ms=1,
            error_code=42,
            error_message="no",
            resources=(
                security.DescribeAclsResponse.DescribeAclsResource(
                    resource_type=2,
                    resource_name="foo",
                    pattern_type=3,
                    acls=(
                        security.DescribeAclsResponse.DescribeAclsResource.AclDescription(
                            principal="User:ann", host="*", operation=4, permission_type=5
                        ),
                    ),
                ),
            ),
        ),
        3,
        "00000001 "  # throttle_time_ms: 1
        "002a "  # error_code: 42
        "03 6e6f "  # error_message: no
        "02 "  # resources: 1 element
        "02 "  # resource_type: 2
        "04 666f6f "  # resource_name: foo
        "03 "  # pattern_type: 3
        "02 "  # acls: 1 element
        "09 557365723a616e6e "  # principal: User:ann
        "02 2a "  # host: *
        "04 "  # operation: 4
        "05 "  # permission_type: 5
        "00 "  # no tagged fields
        "00 "  # no tagged fields
        "00",  # no tagged fields
    ),
    Golden(
        security.CreateAclsRequest(
            creations=(
                security.CreateAclsRequest.AclCreation(
                    resource_type=1,
                    resource_name="foo",
                    resource_pattern_type=2,
                    principal="User:ann",
                    host="*",
                    operation=3,
                    permission_type=4,
                ),
            )
        ),
        3,
        "02 "  # creations: 1 element
        "01 "  # resource_type: 1
        "04 666f6f "  # resource_name: foo
        "02 "  # resource_pattern_type: 2
        "09 557365723a616e6e "  # principal: User:ann
        "02 2a "  # host: *
        "03 "  # operation: 3
        "04 "  # permission_type: 4
        "00 "  # no tagged fields
        "00",  # no tagged fields
    ),
    Golden(
        security.CreateAclsResponse(
            throttle_time_ms=1,
            results=(
                security.CreateAclsResponse.AclCreationResult(error_code=42, error_message="no"),
            ),
        ),
        3,
        "00000001 "  # throttle_time_ms: 1
        "02 "  # results: 1 element
        "002a "  # error_code: 42
        "03 6e6f "  # error_message: no
        "00 "  # no tagged fields
        "00",  # no tagged fields
    ),
    Golden(
        security.DeleteAclsRequest(
            filters=(
                security.DeleteAclsRequest.DeleteAclsFilter(
                    resource_type_filter=1,
                    resource_name_filter="foo",
                    pattern_type_filter=2,
                    principal_filter="foo",
                    host_filter="foo",
                    operation=3,
                    permission_type=4,
                ),
            )
        ),
        3,
        "02 "  # filters: 1 element
        "01 "  # resource_type_filter: 1
        "04 666f6f "  # resource_name_filter: foo
        "02 "  # pattern_type_filter: 2
        "04 666f6f "  # principal_filter: foo
        "04 666f6f "  # host_filter: foo
        "03 "  # operation: 3
        "04 "  # permission_type: 4
        "00 "  # no tagged fields
        "00",  # no tagged fields
    ),
    Golden(
        security.DeleteAclsResponse(
            throttle_time_ms=1,
            filter_results=(
                security.DeleteAclsResponse.DeleteAclsFilterResult(
                    error_code=42,
                    error_message="no",
                    matching_acls=(
                        security.DeleteAclsResponse.DeleteAclsFilterResult.DeleteAclsMatchingAcl(
                            error_code=42,
                            error_message="no",
                            resource_type=2,
                            resource_name="foo",
                            pattern_type=3,
                            principal="User:ann",
                            host="*",
                            operation=4,
                            permission_type=5,
                        ),
                    ),
                ),
            ),
        ),
        3,
        "00000001 "  # throttle_time_ms: 1
        "02 "  # filter_results: 1 element
        "002a "  # error_code: 42
        "03 6e6f "  # error_message: no
        "02 "  # matching_acls: 1 element
        "002a "  # error_code: 42
        "03 6e6f "  # error_message: no
        "02 "  # resource_type: 2
        "04 666f6f "  # resource_name: foo
        "03 "  # pattern_type: 3
        "09 557365723a616e6e "  # principal: User:ann
        "02 2a "  # host: *
        "04 "  # operation: 4
        "05 "  # permission_type: 5
        "00 "  # no tagged fields
        "00 "  # no tagged fields
        "00",  # no tagged fields
    ),
    Golden(
        configs.AlterConfigsRequest(
            resources=(
                configs.AlterConfigsRequest.AlterConfigsResource(
                    resource_type=1,
                    resource_name="foo",
                    configs=(
                        configs.AlterConfigsRequest.AlterConfigsResource.AlterableConfig(
                            name="foo", value="foo"
                        ),
                    ),
                ),
            ),
            validate_only=True,
        ),
        2,
        "02 "  # resources: 1 element
        "01 "  # resource_type: 1
        "04 666f6f "  # resource_name: foo
        "02 "  # configs: 1 element
        "04 666f6f "  # name: foo
        "04 666f6f "  # value: foo
        "00 "  # no tagged fields
        "00 "  # no tagged fields
        "01 "  # validate_only: True
        "00",  # no tagged fields
    ),
    Golden(
        configs.AlterConfigsResponse(
            throttle_time_ms=1,
            responses=(
                configs.AlterConfigsResponse.AlterConfigsResourceResponse(
                    error_code=42, error_message="no", resource_type=2, resource_name="foo"
                ),
            ),
        ),
        2,
        "00000001 "  # throttle_time_ms: 1
        "02 "  # responses: 1 element
        "002a "  # error_code: 42
        "03 6e6f "  # error_message: no
        "02 "  # resource_type: 2
        "04 666f6f "  # resource_name: foo
        "00 "  # no tagged fields
        "00",  # no tagged fields
    ),
    Golden(
        replicas.DescribeLogDirsRequest(
            topics=(
                replicas.DescribeLogDirsRequest.DescribableLogDirTopic(
                    topic="foo", partitions=(1,)
                ),
            )
        ),
        5,
        "02 "  # topics: 1 element
        "04 666f6f "  # topic: foo
        "02 "  # partitions: 1 element
        "00000001 "  # partitions: 1
        "00 "  # no tagged fields
        "00",  # no tagged fields
    ),
    Golden(
        replicas.DescribeLogDirsResponse(
            throttle_time_ms=1,
            error_code=42,
            results=(
                replicas.DescribeLogDirsResponse.DescribeLogDirsResult(
                    error_code=42,
                    log_dir="/d",
                    topics=(
                        replicas.DescribeLogDirsResponse.DescribeLogDirsResult.DescribeLogDirsTopic(
                            name="foo",
                            partitions=(
                                replicas.DescribeLogDirsResponse.DescribeLogDirsResult.DescribeLogDirsTopic.DescribeLogDirsPartition(
                                    partition_index=2,
                                    partition_size=3,
                                    offset_lag=4,
                                    is_future_key=True,
                                ),
                            ),
                        ),
                    ),
                    total_bytes=5,
                    usable_bytes=6,
                    is_cordoned=True,
                ),
            ),
        ),
        5,
        "00000001 "  # throttle_time_ms: 1
        "002a "  # error_code: 42
        "02 "  # results: 1 element
        "002a "  # error_code: 42
        "03 2f64 "  # log_dir: /d
        "02 "  # topics: 1 element
        "04 666f6f "  # name: foo
        "02 "  # partitions: 1 element
        "00000002 "  # partition_index: 2
        "0000000000000003 "  # partition_size: 3
        "0000000000000004 "  # offset_lag: 4
        "01 "  # is_future_key: True
        "00 "  # no tagged fields
        "00 "  # no tagged fields
        "0000000000000005 "  # total_bytes: 5
        "0000000000000006 "  # usable_bytes: 6
        "01 "  # is_cordoned: True
        "00 "  # no tagged fields
        "00",  # no tagged fields
    ),
    Golden(
        security.CreateDelegationTokenRequest(
            owner_principal_type="foo",
            owner_principal_name="foo",
            renewers=(
                security.CreateDelegationTokenRequest.CreatableRenewers(
                    principal_type="User", principal_name="ann"
                ),
            ),
            max_lifetime_ms=1,
        ),
        3,
        "04 666f6f "  # owner_principal_type: foo
        "04 666f6f "  # owner_principal_name: foo
        "02 "  # renewers: 1 element
        "05 55736572 "  # principal_type: User
        "04 616e6e "  # principal_name: ann
        "00 "  # no tagged fields
        "0000000000000001 "  # max_lifetime_ms: 1
        "00",  # no tagged fields
    ),
    Golden(
        security.CreateDelegationTokenResponse(
            error_code=42,
            principal_type="User",
            principal_name="ann",
            token_requester_principal_type="foo",
            token_requester_principal_name="foo",
            issue_timestamp_ms=1,
            expiry_timestamp_ms=2,
            max_timestamp_ms=3,
            token_id="foo",
            hmac=b"\n\x0b",
            throttle_time_ms=4,
        ),
        3,
        "002a "  # error_code: 42
        "05 55736572 "  # principal_type: User
        "04 616e6e "  # principal_name: ann
        "04 666f6f "  # token_requester_principal_type: foo
        "04 666f6f "  # token_requester_principal_name: foo
        "0000000000000001 "  # issue_timestamp_ms: 1
        "0000000000000002 "  # expiry_timestamp_ms: 2
        "0000000000000003 "  # max_timestamp_ms: 3
        "04 666f6f "  # token_id: foo
        "03 0a0b "  # hmac: bytes
        "00000004 "  # throttle_time_ms: 4
        "00",  # no tagged fields
    ),
    Golden(
        security.RenewDelegationTokenRequest(hmac=b"\n\x0b", renew_period_ms=1),
        2,
        "03 0a0b "  # hmac: bytes
        "0000000000000001 "  # renew_period_ms: 1
        "00",  # no tagged fields
    ),
    Golden(
        security.RenewDelegationTokenResponse(
            error_code=42, expiry_timestamp_ms=1, throttle_time_ms=2
        ),
        2,
        "002a "  # error_code: 42
        "0000000000000001 "  # expiry_timestamp_ms: 1
        "00000002 "  # throttle_time_ms: 2
        "00",  # no tagged fields
    ),
    Golden(
        security.ExpireDelegationTokenRequest(hmac=b"\n\x0b", expiry_time_period_ms=1),
        2,
        "03 0a0b "  # hmac: bytes
        "0000000000000001 "  # expiry_time_period_ms: 1
        "00",  # no tagged fields
    ),
    Golden(
        security.ExpireDelegationTokenResponse(
            error_code=42, expiry_timestamp_ms=1, throttle_time_ms=2
        ),
        2,
        "002a "  # error_code: 42
        "0000000000000001 "  # expiry_timestamp_ms: 1
        "00000002 "  # throttle_time_ms: 2
        "00",  # no tagged fields
    ),
    Golden(
        security.DescribeDelegationTokenRequest(
            owners=(
                security.DescribeDelegationTokenRequest.DescribeDelegationTokenOwner(
                    principal_type="User", principal_name="ann"
                ),
            )
        ),
        3,
        "02 "  # owners: 1 element
        "05 55736572 "  # principal_type: User
        "04 616e6e "  # principal_name: ann
        "00 "  # no tagged fields
        "00",  # no tagged fields
    ),
    Golden(
        security.DescribeDelegationTokenResponse(
            error_code=42,
            tokens=(
                security.DescribeDelegationTokenResponse.DescribedDelegationToken(
                    principal_type="User",
                    principal_name="ann",
                    token_requester_principal_type="foo",
                    token_requester_principal_name="foo",
                    issue_timestamp=1,
                    expiry_timestamp=2,
                    max_timestamp=3,
                    token_id="foo",
                    hmac=b"\n\x0b",
                    renewers=(
                        security.DescribeDelegationTokenResponse.DescribedDelegationToken.DescribedDelegationTokenRenewer(
                            principal_type="User", principal_name="ann"
                        ),
                    ),
                ),
            ),
            throttle_time_ms=4,
        ),
        3,
        "002a "  # error_code: 42
        "02 "  # tokens: 1 element
        "05 55736572 "  # principal_type: User
        "04 616e6e "  # principal_name: ann
        "04 666f6f "  # token_requester_principal_type: foo
        "04 666f6f "  # token_requester_principal_name: foo
        "0000000000000001 "  # issue_timestamp: 1
        "0000000000000002 "  # expiry_timestamp: 2
        "0000000000000003 "  # max_timestamp: 3
        "04 666f6f "  # token_id: foo
        "03 0a0b "  # hmac: bytes
        "02 "  # renewers: 1 element
        "05 55736572 "  # principal_type: User
        "04 616e6e "  # principal_name: ann
        "00 "  # no tagged fields
        "00 "  # no tagged fields
        "00000004 "  # throttle_time_ms: 4
        "00",  # no tagged fields
    ),
    Golden(
        replicas.ElectLeadersRequest(
            election_type=1,
            topic_partitions=(
                replicas.ElectLeadersRequest.TopicPartitions(topic="foo", partitions=(2,)),
            ),
            timeout_ms=3,
        ),
        2,
        "01 "  # election_type: 1
        "02 "  # topic_partitions: 1 element
        "04 666f6f "  # topic: foo
        "02 "  # partitions: 1 element
        "00000002 "  # partitions: 2
        "00 "  # no tagged fields
        "00000003 "  # timeout_ms: 3
        "00",  # no tagged fields
    ),
    Golden(
        replicas.ElectLeadersResponse(
            throttle_time_ms=1,
            error_code=42,
            replica_election_results=(
                replicas.ElectLeadersResponse.ReplicaElectionResult(
                    topic="foo",
                    partition_result=(
                        replicas.ElectLeadersResponse.ReplicaElectionResult.PartitionResult(
                            partition_id=2, error_code=42, error_message="no"
                        ),
                    ),
                ),
            ),
        ),
        2,
        "00000001 "  # throttle_time_ms: 1
        "002a "  # error_code: 42
        "02 "  # replica_election_results: 1 element
        "04 666f6f "  # topic: foo
        "02 "  # partition_result: 1 element
        "00000002 "  # partition_id: 2
        "002a "  # error_code: 42
        "03 6e6f "  # error_message: no
        "00 "  # no tagged fields
        "00 "  # no tagged fields
        "00",  # no tagged fields
    ),
    Golden(
        replicas.AlterPartitionReassignmentsRequest(
            timeout_ms=1,
            allow_replication_factor_change=True,
            topics=(
                replicas.AlterPartitionReassignmentsRequest.ReassignableTopic(
                    name="foo",
                    partitions=(
                        replicas.AlterPartitionReassignmentsRequest.ReassignableTopic.ReassignablePartition(
                            partition_index=2, replicas=(3,)
                        ),
                    ),
                ),
            ),
        ),
        1,
        "00000001 "  # timeout_ms: 1
        "01 "  # allow_replication_factor_change: True
        "02 "  # topics: 1 element
        "04 666f6f "  # name: foo
        "02 "  # partitions: 1 element
        "00000002 "  # partition_index: 2
        "02 "  # replicas: 1 element
        "00000003 "  # replicas: 3
        "00 "  # no tagged fields
        "00 "  # no tagged fields
        "00",  # no tagged fields
    ),
    Golden(
        replicas.AlterPartitionReassignmentsResponse(
            throttle_time_ms=1,
            allow_replication_factor_change=True,
            error_code=42,
            error_message="no",
            responses=(
                replicas.AlterPartitionReassignmentsResponse.ReassignableTopicResponse(
                    name="foo",
                    partitions=(
                        replicas.AlterPartitionReassignmentsResponse.ReassignableTopicResponse.ReassignablePartitionResponse(
                            partition_index=2, error_code=42, error_message="no"
                        ),
                    ),
                ),
            ),
        ),
        1,
        "00000001 "  # throttle_time_ms: 1
        "01 "  # allow_replication_factor_change: True
        "002a "  # error_code: 42
        "03 6e6f "  # error_message: no
        "02 "  # responses: 1 element
        "04 666f6f "  # name: foo
        "02 "  # partitions: 1 element
        "00000002 "  # partition_index: 2
        "002a "  # error_code: 42
        "03 6e6f "  # error_message: no
        "00 "  # no tagged fields
        "00 "  # no tagged fields
        "00",  # no tagged fields
    ),
    Golden(
        replicas.ListPartitionReassignmentsRequest(
            timeout_ms=1,
            topics=(
                replicas.ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics(
                    name="foo", partition_indexes=(2,)
                ),
            ),
        ),
        0,
        "00000001 "  # timeout_ms: 1
        "02 "  # topics: 1 element
        "04 666f6f "  # name: foo
        "02 "  # partition_indexes: 1 element
        "00000002 "  # partition_indexes: 2
        "00 "  # no tagged fields
        "00",  # no tagged fields
    ),
    Golden(
        replicas.ListPartitionReassignmentsResponse(
            throttle_time_ms=1,
            error_code=42,
            error_message="no",
            topics=(
                replicas.ListPartitionReassignmentsResponse.OngoingTopicReassignment(
                    name="foo",
                    partitions=(
                        replicas.ListPartitionReassignmentsResponse.OngoingTopicReassignment.OngoingPartitionReassignment(
                            partition_index=2,
                            replicas=(3,),
                            adding_replicas=(4,),
                            removing_replicas=(5,),
                        ),
                    ),
                ),
            ),
        ),
        0,
        "00000001 "  # throttle_time_ms: 1
        "002a "  # error_code: 42
        "03 6e6f "  # error_message: no
        "02 "  # topics: 1 element
        "04 666f6f "  # name: foo
        "02 "  # partitions: 1 element
        "00000002 "  # partition_index: 2
        "02 "  # replicas: 1 element
        "00000003 "  # replicas: 3
        "02 "  # adding_replicas: 1 element
        "00000004 "  # adding_replicas: 4
        "02 "  # removing_replicas: 1 element
        "00000005 "  # removing_replicas: 5
        "00 "  # no tagged fields
        "00 "  # no tagged fields
        "00",  # no tagged fields
    ),
    Golden(
        groups.OffsetDeleteRequest(
            group_id="g",
            topics=(
                groups.OffsetDeleteRequest.OffsetDeleteRequestTopic(
                    name="foo",
                    partitions=(
                        groups.OffsetDeleteRequest.OffsetDeleteRequestTopic.OffsetDeleteRequestPartition(
                            partition_index=1
                        ),
                    ),
                ),
            ),
        ),
        0,
        "0001 67 "  # group_id: g
        "00000001 "  # topics: 1 element
        "0003 666f6f "  # name: foo
        "00000001 "  # partitions: 1 element
        "00000001",  # partition_index: 1
    ),
    Golden(
        groups.OffsetDeleteResponse(
            error_code=42,
            throttle_time_ms=1,
            topics=(
                groups.OffsetDeleteResponse.OffsetDeleteResponseTopic(
                    name="foo",
                    partitions=(
                        groups.OffsetDeleteResponse.OffsetDeleteResponseTopic.OffsetDeleteResponsePartition(
                            partition_index=2, error_code=42
                        ),
                    ),
                ),
            ),
        ),
        0,
        "002a "  # error_code: 42
        "00000001 "  # throttle_time_ms: 1
        "00000001 "  # topics: 1 element
        "0003 666f6f "  # name: foo
        "00000001 "  # partitions: 1 element
        "00000002 "  # partition_index: 2
        "002a",  # error_code: 42
    ),
    Golden(
        security.DescribeClientQuotasRequest(
            components=(
                security.DescribeClientQuotasRequest.ComponentData(
                    entity_type="foo", match_type=1, match="foo"
                ),
            ),
            strict=True,
        ),
        1,
        "02 "  # components: 1 element
        "04 666f6f "  # entity_type: foo
        "01 "  # match_type: 1
        "04 666f6f "  # match: foo
        "00 "  # no tagged fields
        "01 "  # strict: True
        "00",  # no tagged fields
    ),
    Golden(
        security.DescribeClientQuotasResponse(
            throttle_time_ms=1,
            error_code=42,
            error_message="no",
            entries=(
                security.DescribeClientQuotasResponse.EntryData(
                    entity=(
                        security.DescribeClientQuotasResponse.EntryData.EntityData(
                            entity_type="foo", entity_name="foo"
                        ),
                    ),
                    values=(
                        security.DescribeClientQuotasResponse.EntryData.ValueData(
                            key="foo", value=1.5
                        ),
                    ),
                ),
            ),
        ),
        1,
        "00000001 "  # throttle_time_ms: 1
        "002a "  # error_code: 42
        "03 6e6f "  # error_message: no
        "02 "  # entries: 1 element
        "02 "  # entity: 1 element
        "04 666f6f "  # entity_type: foo
        "04 666f6f "  # entity_name: foo
        "00 "  # no tagged fields
        "02 "  # values: 1 element
        "04 666f6f "  # key: foo
        "3ff8000000000000 "  # value: 1.5
        "00 "  # no tagged fields
        "00 "  # no tagged fields
        "00",  # no tagged fields
    ),
    Golden(
        security.AlterClientQuotasRequest(
            entries=(
                security.AlterClientQuotasRequest.EntryData(
                    entity=(
                        security.AlterClientQuotasRequest.EntryData.EntityData(
                            entity_type="foo", entity_name="foo"
                        ),
                    ),
                    ops=(
                        security.AlterClientQuotasRequest.EntryData.OpData(
                            key="foo", value=1.5, remove=True
                        ),
                    ),
                ),
            ),
            validate_only=True,
        ),
        1,
        "02 "  # entries: 1 element
        "02 "  # entity: 1 element
        "04 666f6f "  # entity_type: foo
        "04 666f6f "  # entity_name: foo
        "00 "  # no tagged fields
        "02 "  # ops: 1 element
        "04 666f6f "  # key: foo
        "3ff8000000000000 "  # value: 1.5
        "01 "  # remove: True
        "00 "  # no tagged fields
        "00 "  # no tagged fields
        "01 "  # validate_only: True
        "00",  # no tagged fields
    ),
    Golden(
        security.AlterClientQuotasResponse(
            throttle_time_ms=1,
            entries=(
                security.AlterClientQuotasResponse.EntryData(
                    error_code=42,
                    error_message="no",
                    entity=(
                        security.AlterClientQuotasResponse.EntryData.EntityData(
                            entity_type="foo", entity_name="foo"
                        ),
                    ),
                ),
            ),
        ),
        1,
        "00000001 "  # throttle_time_ms: 1
        "02 "  # entries: 1 element
        "002a "  # error_code: 42
        "03 6e6f "  # error_message: no
        "02 "  # entity: 1 element
        "04 666f6f "  # entity_type: foo
        "04 666f6f "  # entity_name: foo
        "00 "  # no tagged fields
        "00 "  # no tagged fields
        "00",  # no tagged fields
    ),
    Golden(
        security.DescribeUserScramCredentialsRequest(
            users=(security.DescribeUserScramCredentialsRequest.UserName(name="foo"),)
        ),
        0,
        "02 "  # users: 1 element
        "04 666f6f "  # name: foo
        "00 "  # no tagged fields
        "00",  # no tagged fields
    ),
    Golden(
        security.DescribeUserScramCredentialsResponse(
            throttle_time_ms=1,
            error_code=42,
            error_message="no",
            results=(
                security.DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult(
                    user="ann",
                    error_code=42,
                    error_message="no",
                    credential_infos=(
                        security.DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult.CredentialInfo(
                            mechanism=2, iterations=3
                        ),
                    ),
                ),
            ),
        ),
        0,
        "00000001 "  # throttle_time_ms: 1
        "002a "  # error_code: 42
        "03 6e6f "  # error_message: no
        "02 "  # results: 1 element
        "04 616e6e "  # user: ann
        "002a "  # error_code: 42
        "03 6e6f "  # error_message: no
        "02 "  # credential_infos: 1 element
        "02 "  # mechanism: 2
        "00000003 "  # iterations: 3
        "00 "  # no tagged fields
        "00 "  # no tagged fields
        "00",  # no tagged fields
    ),
    Golden(
        security.AlterUserScramCredentialsRequest(
            deletions=(
                security.AlterUserScramCredentialsRequest.ScramCredentialDeletion(
                    name="foo", mechanism=1
                ),
            ),
            upsertions=(
                security.AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
                    name="foo", mechanism=2, iterations=3, salt=b"\n\x0b", salted_password=b"\n\x0b"
                ),
            ),
        ),
        0,
        "02 "  # deletions: 1 element
        "04 666f6f "  # name: foo
        "01 "  # mechanism: 1
        "00 "  # no tagged fields
        "02 "  # upsertions: 1 element
        "04 666f6f "  # name: foo
        "02 "  # mechanism: 2
        "00000003 "  # iterations: 3
        "03 0a0b "  # salt: bytes
        "03 0a0b "  # salted_password: bytes
        "00 "  # no tagged fields
        "00",  # no tagged fields
    ),
    Golden(
        security.AlterUserScramCredentialsResponse(
            throttle_time_ms=1,
            results=(
                security.AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult(
                    user="ann", error_code=42, error_message="no"
                ),
            ),
        ),
        0,
        "00000001 "  # throttle_time_ms: 1
        "02 "  # results: 1 element
        "04 616e6e "  # user: ann
        "002a "  # error_code: 42
        "03 6e6f "  # error_message: no
        "00 "  # no tagged fields
        "00",  # no tagged fields
    ),
    Golden(
        transactions.DescribeProducersRequest(
            topics=(
                transactions.DescribeProducersRequest.TopicRequest(
                    name="foo", partition_indexes=(1,)
                ),
            )
        ),
        0,
        "02 "  # topics: 1 element
        "04 666f6f "  # name: foo
        "02 "  # partition_indexes: 1 element
        "00000001 "  # partition_indexes: 1
        "00 "  # no tagged fields
        "00",  # no tagged fields
    ),
    Golden(
        transactions.DescribeProducersResponse(
            throttle_time_ms=1,
            topics=(
                transactions.DescribeProducersResponse.TopicResponse(
                    name="foo",
                    partitions=(
                        transactions.DescribeProducersResponse.TopicResponse.PartitionResponse(
                            partition_index=2,
                            error_code=42,
                            error_message="no",
                            active_producers=(
                                transactions.DescribeProducersResponse.TopicResponse.PartitionResponse.ProducerState(
                                    producer_id=3,
                                    producer_epoch=4,
                                    last_sequence=5,
                                    last_timestamp=6,
                                    coordinator_epoch=7,
                                    current_txn_start_offset=8,
                                ),
                            ),
                        ),
                    ),
                ),
            ),
        ),
        0,
        "00000001 "  # throttle_time_ms: 1
        "02 "  # topics: 1 element
        "04 666f6f "  # name: foo
        "02 "  # partitions: 1 element
        "00000002 "  # partition_index: 2
        "002a "  # error_code: 42
        "03 6e6f "  # error_message: no
        "02 "  # active_producers: 1 element
        "0000000000000003 "  # producer_id: 3
        "00000004 "  # producer_epoch: 4
        "00000005 "  # last_sequence: 5
        "0000000000000006 "  # last_timestamp: 6
        "00000007 "  # coordinator_epoch: 7
        "0000000000000008 "  # current_txn_start_offset: 8
        "00 "  # no tagged fields
        "00 "  # no tagged fields
        "00 "  # no tagged fields
        "00",  # no tagged fields
    ),
    Golden(
        transactions.DescribeTransactionsRequest(transactional_ids=("foo",)),
        0,
        "02 "  # transactional_ids: 1 element
        "04 666f6f "  # transactional_ids: foo
        "00",  # no tagged fields
    ),
    Golden(
        transactions.DescribeTransactionsResponse(
            throttle_time_ms=1,
            transaction_states=(
                transactions.DescribeTransactionsResponse.TransactionState(
                    error_code=42,
                    transactional_id="foo",
                    transaction_state="foo",
                    transaction_timeout_ms=2,
                    transaction_start_time_ms=3,
                    producer_id=4,
                    producer_epoch=5,
                    topics=(
                        transactions.DescribeTransactionsResponse.TransactionState.TopicData(
                            topic="foo", partitions=(6,)
                        ),
                    ),
                ),
            ),
        ),
        0,
        "00000001 "  # throttle_time_ms: 1
        "02 "  # transaction_states: 1 element
        "002a "  # error_code: 42
        "04 666f6f "  # transactional_id: foo
        "04 666f6f "  # transaction_state: foo
        "00000002 "  # transaction_timeout_ms: 2
        "0000000000000003 "  # transaction_start_time_ms: 3
        "0000000000000004 "  # producer_id: 4
        "0005 "  # producer_epoch: 5
        "02 "  # topics: 1 element
        "04 666f6f "  # topic: foo
        "02 "  # partitions: 1 element
        "00000006 "  # partitions: 6
        "00 "  # no tagged fields
        "00 "  # no tagged fields
        "00",  # no tagged fields
    ),
    Golden(
        transactions.ListTransactionsRequest(
            state_filters=("foo",),
            producer_id_filters=(1,),
            duration_filter=2,
            transactional_id_pattern="foo",
        ),
        2,
        "02 "  # state_filters: 1 element
        "04 666f6f "  # state_filters: foo
        "02 "  # producer_id_filters: 1 element
        "0000000000000001 "  # producer_id_filters: 1
        "0000000000000002 "  # duration_filter: 2
        "04 666f6f "  # transactional_id_pattern: foo
        "00",  # no tagged fields
    ),
    Golden(
        transactions.ListTransactionsResponse(
            throttle_time_ms=1,
            error_code=42,
            unknown_state_filters=("foo",),
            transaction_states=(
                transactions.ListTransactionsResponse.TransactionState(
                    transactional_id="foo", producer_id=2, transaction_state="foo"
                ),
            ),
        ),
        2,
        "00000001 "  # throttle_time_ms: 1
        "002a "  # error_code: 42
        "02 "  # unknown_state_filters: 1 element
        "04 666f6f "  # unknown_state_filters: foo
        "02 "  # transaction_states: 1 element
        "04 666f6f "  # transactional_id: foo
        "0000000000000002 "  # producer_id: 2
        "04 666f6f "  # transaction_state: foo
        "00 "  # no tagged fields
        "00",  # no tagged fields
    ),
    Golden(
        telemetry.GetTelemetrySubscriptionsRequest(client_instance_id=UUID(int=7)),
        0,
        "00000000000000000000000000000007 "  # client_instance_id
        "00",  # no tagged fields
    ),
    Golden(
        telemetry.GetTelemetrySubscriptionsResponse(
            throttle_time_ms=1,
            error_code=42,
            client_instance_id=UUID(int=7),
            subscription_id=2,
            accepted_compression_types=(3,),
            push_interval_ms=4,
            telemetry_max_bytes=5,
            delta_temporality=True,
            requested_metrics=("foo",),
        ),
        0,
        "00000001 "  # throttle_time_ms: 1
        "002a "  # error_code: 42
        "00000000000000000000000000000007 "  # client_instance_id
        "00000002 "  # subscription_id: 2
        "02 "  # accepted_compression_types: 1 element
        "03 "  # accepted_compression_types: 3
        "00000004 "  # push_interval_ms: 4
        "00000005 "  # telemetry_max_bytes: 5
        "01 "  # delta_temporality: True
        "02 "  # requested_metrics: 1 element
        "04 666f6f "  # requested_metrics: foo
        "00",  # no tagged fields
    ),
    Golden(
        telemetry.PushTelemetryRequest(
            client_instance_id=UUID(int=7),
            subscription_id=1,
            terminating=True,
            compression_type=2,
            metrics=b"\n\x0b",
        ),
        0,
        "00000000000000000000000000000007 "  # client_instance_id
        "00000001 "  # subscription_id: 1
        "01 "  # terminating: True
        "02 "  # compression_type: 2
        "03 0a0b "  # metrics: bytes
        "00",  # no tagged fields
    ),
    Golden(
        telemetry.PushTelemetryResponse(throttle_time_ms=1, error_code=42),
        0,
        "00000001 "  # throttle_time_ms: 1
        "002a "  # error_code: 42
        "00",  # no tagged fields
    ),
    Golden(
        configs.ListConfigResourcesRequest(resource_types=(1,)),
        1,
        "02 "  # resource_types: 1 element
        "01 "  # resource_types: 1
        "00",  # no tagged fields
    ),
    Golden(
        configs.ListConfigResourcesResponse(
            throttle_time_ms=1,
            error_code=42,
            config_resources=(
                configs.ListConfigResourcesResponse.ConfigResource(
                    resource_name="foo", resource_type=2
                ),
            ),
        ),
        1,
        "00000001 "  # throttle_time_ms: 1
        "002a "  # error_code: 42
        "02 "  # config_resources: 1 element
        "04 666f6f "  # resource_name: foo
        "02 "  # resource_type: 2
        "00 "  # no tagged fields
        "00",  # no tagged fields
    ),
]


@pytest.mark.parametrize("golden", GOLDEN, ids=golden_name)
def test_administrative_messages_match_the_golden_bytes(golden: Golden) -> None:
    assert encode_message(golden.message, golden.version).hex() == golden.encoded.hex()
    decoded = decode_message(type(golden.message), golden.encoded, golden.version)
    assert decoded == golden.message
