"""Settings of topics and nodes, read and changed.

Source: KIP-133 (DescribeConfigs), KIP-226 (synonyms), KIP-339 (IncrementalAlterConfigs), KIP-569
(types and documentation).
"""

from typing import Annotated

from records.rpc.base import Request, Response
from records.schema import Message
from records.wire import IGNORABLE, Array, Bool, Int8, Int16, Int32, String, since


class DescribeConfigsRequest(Request, key=32, versions="1-4", flexible="4+"):
    """Asks for the settings of resources. Source: KIP-133."""

    class DescribeConfigsResource(Message):
        resource_type: Int8  # 2 topic, 4 broker
        resource_name: String
        configuration_keys: Array[String] | None  # null: all

    resources: Array[DescribeConfigsResource]
    include_synonyms: Annotated[Bool, since(1)] = False
    include_documentation: Annotated[Bool, since(3)] = False


class DescribeConfigsResponse(Response, key=32, versions="1-4", flexible="4+"):
    """The settings of each resource, and where each value comes from. Source: KIP-133, KIP-226."""

    class DescribeConfigsResult(Message):
        class DescribeConfigsResourceResult(Message):
            class DescribeConfigsSynonym(Message):
                name: Annotated[String, since(1)] = ""
                value: Annotated[String | None, since(1)] = ""
                source: Annotated[Int8, since(1)] = 0

            name: String
            value: String | None
            read_only: Bool
            config_source: Annotated[Int8, since(1), IGNORABLE] = -1
            is_sensitive: Bool
            synonyms: Annotated[Array[DescribeConfigsSynonym], since(1), IGNORABLE] = ()
            config_type: Annotated[Int8, since(3), IGNORABLE] = 0
            documentation: Annotated[String | None, since(3), IGNORABLE] = ""

        error_code: Int16 = 0
        error_message: String | None
        resource_type: Int8
        resource_name: String
        configs: Array[DescribeConfigsResourceResult]

    throttle_time_ms: Int32 = 0
    results: Array[DescribeConfigsResult]


class IncrementalAlterConfigsRequest(Request, key=44, versions="0-1", flexible="1+"):
    """Changes some settings of resources and leaves the others. Source: KIP-339."""

    class AlterConfigsResource(Message):
        class AlterableConfig(Message):
            name: String
            config_operation: Int8  # 0 set, 1 delete, 2 append to a list, 3 subtract from it
            value: String | None

        resource_type: Int8
        resource_name: String
        configs: Array[AlterableConfig]

    resources: Array[AlterConfigsResource]
    validate_only: Bool


class IncrementalAlterConfigsResponse(Response, key=44, versions="0-1", flexible="1+"):
    """A result for each resource. Source: KIP-339."""

    class AlterConfigsResourceResponse(Message):
        error_code: Int16 = 0
        error_message: String | None
        resource_type: Int8
        resource_name: String

    throttle_time_ms: Int32 = 0
    responses: Array[AlterConfigsResourceResponse]


class AlterConfigsRequest(Request, key=33, versions="0-2", flexible="2+"):
    """Replaces all settings of resources. Source: KIP-133."""

    class AlterConfigsResource(Message):
        class AlterableConfig(Message):
            name: String
            value: String | None

        resource_type: Int8
        resource_name: String
        configs: Array[AlterableConfig]

    resources: Array[AlterConfigsResource]
    validate_only: Bool


class AlterConfigsResponse(Response, key=33, versions="0-2", flexible="2+"):
    """Returns a result for each resource. Source: KIP-133."""

    class AlterConfigsResourceResponse(Message):
        error_code: Int16 = 0
        error_message: String | None
        resource_type: Int8
        resource_name: String

    throttle_time_ms: Int32 = 0
    responses: Array[AlterConfigsResourceResponse]


class ListConfigResourcesRequest(Request, key=74, versions="0-1"):
    """Asks for the resources that have settings, by their types. Source: KIP-1142."""

    resource_types: Annotated[Array[Int8], since(1)] = ()


class ListConfigResourcesResponse(Response, key=74, versions="0-1"):
    """Returns the names of the resources and their types. Source: KIP-1142."""

    class ConfigResource(Message):
        resource_name: String
        resource_type: Annotated[Int8, since(1), IGNORABLE] = 16

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    config_resources: Array[ConfigResource]
