"""Schemas of a registry, over HTTP.

Source: Confluent's Schema Registry API.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from spark_jobs.topic_tables import registry as module
from spark_jobs.topic_tables.formats import WriterSchema
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
ANSWERS = {
    "/schemas/ids/1": (200, {"schema": ORDER}),
    "/schemas/ids/2": (200, {"schema": JSON, "schemaType": "JSON"}),
    "/schemas/ids/3": (200, {"schema": "syntax ...", "schemaType": "PROTOBUF"}),
    "/schemas/ids/3?format=serialized": (
        200,
        {"schema": base64.b64encode(FILE).decode(), "schemaType": "PROTOBUF"},
    ),
    "/schemas/ids/4": (200, {"schema": ORDER, "references": [{"name": "other"}]}),
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
        (4, SchemaError, "schema 4 refers to other schemas"),
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
