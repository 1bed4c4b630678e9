"""Schemas of a registry, over HTTP.

Source: Confluent's Schema Registry API.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from spark_jobs.topic_tables import registry as module
from spark_jobs.topic_tables.avro_values import decode_avro
from spark_jobs.topic_tables.formats import WriterSchema
from spark_jobs.topic_tables.protobuf_values import protobuf_type
from spark_jobs.topic_tables.registry import (
    RegistryError,
    SchemaRegistry,
    avro_schema,
    json_schema,
    open_schemas,
)
from spark_jobs.topic_tables.rows import Unknown
from spark_jobs.topic_tables.schemas import NamedValues
from spark_jobs.topic_tables.value_types import SchemaError
from tests.spark_jobs.test_topic_table_values import FILE, ORDER, confluent

JSON = '{"properties": {"id": {"type": "integer"}}}'


def reference(name: str, subject: str) -> dict[str, Any]:
    return {"name": name, "subject": subject, "version": 2}


def avro_record(name: str, **fields: Any) -> str:
    """Return a record of Avro in the namespace `shop`, or in none for a name in lower case."""
    made = {"type": "record", "name": name} | ({} if name.islower() else {"namespace": "shop"})
    made["fields"] = [{"name": field, "type": kind} for field, kind in fields.items()]
    return json.dumps(made)


def json_object(kind: str = "string", **properties: Any) -> str:
    """Return a JSON Schema that defines `x` as a type."""
    return json.dumps({"properties": properties, "$defs": {"x": {"type": kind}}})


def protobuf(name: str, field_type: str | None = None, imported: str | None = None) -> str:
    """Return a file with one message as a registry serializes it: its name is not the import's."""
    file = FileDescriptorProto(name="default", package="shop", syntax="proto3")
    field = file.message_type.add(name=name).field.add(name="of", number=1, label=1)
    if imported is None:
        field.type = field.TYPE_STRING
    else:
        file.dependency.append(imported)
        field.type, field.type_name = field.TYPE_MESSAGE, f".shop.{field_type}"
    return base64.b64encode(file.SerializeToString()).decode()


REFERRING: dict[str, tuple[int, Any]] = {
    "/schemas/ids/11": (
        200,
        {
            "schema": avro_record(
                "Order", bill="Customer", ship=["null", "shop.Customer"], where="city"
            ),
            "references": [reference("shop.Customer", "eu/customer"), reference("city", "city")],
        },
    ),
    "/subjects/eu%2Fcustomer/versions/2": (
        200,
        {"schema": avro_record("Customer", city="city"), "references": [reference("city", "city")]},
    ),
    "/subjects/city/versions/2": (200, {"schema": avro_record("city", zip="string")}),
    "/schemas/ids/12": (
        200,
        {
            "schemaType": "JSON",
            "schema": json_object(
                bill={"$ref": "customer.json"},
                zip={"$ref": "#/$defs/x"},
                ship={"$ref": "customer.json#/$defs/x"},
            ),
            "references": [reference("customer.json", "customer")],
        },
    ),
    "/subjects/customer/versions/2": (
        200,
        {
            "schemaType": "JSON",
            "schema": json_object("integer", id={"$ref": "#/$defs/x"}),
        },
    ),
    "/schemas/ids/13": (
        200,
        {"schemaType": "PROTOBUF", "references": [reference("a/customer.proto", "customer.p")]},
    ),
    "/schemas/ids/13?format=serialized": (
        200,
        {"schema": protobuf("Order", "Customer", "a/customer.proto")},
    ),
    "/subjects/customer.p/versions/2": (
        200,
        {"schemaType": "PROTOBUF", "references": [reference("city.proto", "city.p")]},
    ),
    "/subjects/customer.p/versions/2?format=serialized": (
        200,
        {"schema": protobuf("Customer", "City", "city.proto")},
    ),
    "/subjects/city.p/versions/2": (200, {"schemaType": "PROTOBUF"}),
    "/subjects/city.p/versions/2?format=serialized": (200, {"schema": protobuf("City")}),
}
ANSWERS = {
    **REFERRING,
    "/schemas/ids/1": (200, {"schema": ORDER}),
    "/schemas/ids/2": (200, {"schema": JSON, "schemaType": "JSON"}),
    "/schemas/ids/3": (200, {"schema": "syntax ...", "schemaType": "PROTOBUF"}),
    "/schemas/ids/3?format=serialized": (
        200,
        {"schema": base64.b64encode(FILE).decode(), "schemaType": "PROTOBUF"},
    ),
    "/schemas/ids/4": (
        200,
        {"schema": ORDER, "references": [{"name": "other", "subject": "gone", "version": 1}]},
    ),
    "/schemas/ids/5": (200, {"schema": "a b", "schemaType": "PROTOBUF"}),
    "/schemas/ids/5?format=serialized": (200, {"schema": "a b", "schemaType": "PROTOBUF"}),
    "/schemas/ids/6": (200, {"schema": "x", "schemaType": "THRIFT"}),
    "/schemas/ids/7": (401, {}),
}


class Registry(BaseHTTPRequestHandler):
    """Answers as a registry does; wants a password."""

    def do_GET(self) -> None:
        status, document = ANSWERS.get(self.path, (404, {"error_code": 40403}))
        if self.headers["Authorization"] != "Basic " + base64.b64encode(b"me:secret").decode():
            status = 401
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(document).encode())

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://me:secret@127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_a_registry_has_schemas_of_all_kinds(url: str) -> None:
    source = open_schemas(url)
    assert source.get(1) == avro_schema(ORDER)
    assert source.get(2) == json_schema(JSON)
    assert source.get(3) == WriterSchema("PROTOBUF", descriptors=FILE)
    assert source.get(99) is None


@pytest.mark.parametrize(
    ("schema_id", "kind", "reason"),
    [
        (4, SchemaError, "has no /subjects/gone/versions/1, a schema's other"),
        (5, SchemaError, "as text only"),
        (6, SchemaError, "its type is THRIFT"),
        (7, RegistryError, "answers 401"),
    ],
)
def test_a_schema_that_cannot_be_used_is_told(
    url: str, schema_id: int, kind: type[Exception], reason: str
) -> None:
    with pytest.raises(kind, match=reason):
        open_schemas(url).get(schema_id)


def test_avro_that_refers_to_other_schemas_has_their_types(url: str) -> None:
    schema = open_schemas(url).get(11)
    assert schema is not None
    city = pa.struct([("zip", pa.string())])
    customer = pa.struct([("city", city)])
    assert schema.value_type == pa.struct([("bill", customer), ("ship", customer), ("where", city)])
    value = {"bill": {"city": {"zip": "1"}}, "ship": None, "where": {"zip": "2"}}
    stream = BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(schema.text)), value)
    assert decode_avro(schema.text, stream.getvalue()) == value


def test_json_that_refers_to_other_schemas_has_their_types(url: str) -> None:
    schema = open_schemas(url).get(12)
    assert schema is not None
    customer = pa.struct([("id", pa.int64())])
    assert schema.value_type == pa.struct(
        [("bill", customer), ("zip", pa.string()), ("ship", pa.int64())]
    )


def test_protobuf_that_refers_to_other_schemas_has_their_types(url: str) -> None:
    schema = open_schemas(url).get(13)
    assert schema is not None
    city = pa.struct([("of", pa.string())])
    assert protobuf_type(schema.descriptors, (0,)) == pa.struct([("of", pa.struct([("of", city)]))])


def test_an_id_that_the_registry_does_not_have_makes_its_records_bad(url: str) -> None:
    values = NamedValues(SchemaRegistry(url))
    values.start(None)
    assert values.learn(Unknown(frozenset({99}))) is None
    assert values.format.decode([confluent(99, b"")]).bad == {0: "the registry has no schema 99"}


def test_a_registry_that_does_not_answer_is_an_error_that_may_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "RETRIES", 0)
    with pytest.raises(RegistryError, match=r"registry http://127\.0\.0\.1:1 does not answer"):
        open_schemas("http://user:password@127.0.0.1:1").get(1)


def test_schemas_are_of_a_directory_or_of_a_registry() -> None:
    with pytest.raises(SchemaError, match="neither a directory nor http"):
        open_schemas("nowhere")
