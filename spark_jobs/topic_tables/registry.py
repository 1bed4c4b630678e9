"""Where schemas are looked up by id: a schema registry, or a directory.

A registry is asked as Confluent's is, `GET /schemas/ids/7`; Karapace and Apicurio answer the same.
What a schema refers to is asked for by subject and version, and becomes part of it. In a directory
schema 7 is the file `7.avsc`, `7.json`, or `7.desc`, a descriptor set of Protobuf.

Source: Confluent's Schema Registry API.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote, urlsplit

import urllib3
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from spark_jobs.topic_tables.avro_values import avro_type, with_references
from spark_jobs.topic_tables.formats import WriterSchema
from spark_jobs.topic_tables.json_values import json_schema_type
from spark_jobs.topic_tables.value_types import SchemaError

TIMEOUT_S: Final = 10.0
RETRIES: Final = 3
_SERIALIZED: Final = "?format=serialized"
_OUTERMOST: Final = "value.proto"


class RegistryError(Exception):
    """A registry does not answer; a later attempt may succeed."""


class SchemaSource(Protocol):
    """Schemas by id."""

    def get(self, schema_id: int) -> WriterSchema | None:
        """Return a schema, or None if there is none of this id and there will be none.

        Raises:  SchemaError for one that cannot be used; RegistryError.
        """
        ...


class SchemaDirectory:
    """Schemas in the files of a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def get(self, schema_id: int) -> WriterSchema | None:
        """Return the schema in a file."""
        for name, read in (
            (f"{schema_id}.avsc", lambda data: avro_schema(data.decode())),
            (f"{schema_id}.json", lambda data: json_schema(data.decode())),
            (f"{schema_id}.desc", lambda data: WriterSchema("PROTOBUF", descriptors=data)),
        ):
            path = self._directory / name
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise SchemaError(f"{path}: {error.strerror}") from None
            return _named(str(path), lambda read=read, data=data: read(data))
        raise SchemaError(
            f"{self._directory} has no schema {schema_id}: a file {schema_id}.avsc, .json or .desc"
        )


class SchemaRegistry:
    """Schemas of a registry."""

    def __init__(self, url: str) -> None:
        """Bind a registry; it is not contacted yet.

        Args:    url: http[s]://[USER:PASSWORD@]HOST[:PORT][/PATH]
        """
        parts = urlsplit(url)
        user, _, host = parts.netloc.rpartition("@")
        self._url = f"{parts.scheme}://{host}{parts.path.rstrip('/')}"
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json"}
        if user:
            self._headers |= urllib3.make_headers(basic_auth=user)
        self._pool = urllib3.PoolManager(
            timeout=TIMEOUT_S, retries=urllib3.Retry(RETRIES, backoff_factor=0.2)
        )

    def get(self, schema_id: int) -> WriterSchema | None:
        """Return the schema that the registry has of an id."""
        found = self._ask(f"/schemas/ids/{schema_id}")
        if found is None:
            return None
        kind = found.get("schemaType", "AVRO")
        others: dict[str, str] = {}
        self._collect(found, kind, others)
        if kind == "PROTOBUF":
            found = self._ask(f"/schemas/ids/{schema_id}{_SERIALIZED}") or {}
        text = found.get("schema", "")
        return _named(f"schema {schema_id}", lambda: _of_registry(kind, text, others))

    def _collect(self, found: Any, kind: str, others: dict[str, str]) -> None:
        """Add the schemas that one refers to, by name; what these refer to comes before them."""
        for reference in found.get("references") or ():
            name = reference["name"]
            if name in others:
                continue
            path = f"/subjects/{quote(reference['subject'], '')}/versions/{reference['version']}"
            other = self._ask(path)
            if other is None:
                raise SchemaError(f"the registry {self._url} has no {path}, a schema's {name}")
            self._collect(other, kind, others)
            if kind == "PROTOBUF":
                other = self._ask(path + _SERIALIZED) or {}
            others[name] = other.get("schema", "")

    def _ask(self, path: str) -> Any:
        """Return the answer to a GET, or None for 404."""
        try:
            answer = self._pool.request("GET", f"{self._url}{path}", headers=self._headers)
        except urllib3.exceptions.HTTPError as error:
            raise RegistryError(f"the registry {self._url} does not answer: {error}") from None
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise RegistryError(f"the registry {self._url} answers {answer.status} to {path}")
        try:
            return json.loads(answer.data)
        except ValueError:
            raise RegistryError(f"the registry {self._url} answers {path} without JSON") from None


def open_schemas(text: str) -> SchemaSource:
    """Open the directory or the registry that a text names.

    Raises:  SchemaError.
    """
    if text.startswith(("http://", "https://")):
        return SchemaRegistry(text)
    if not Path(text).is_dir():
        raise SchemaError(f"{text} is neither a directory nor http[s]://HOST[:PORT]")
    return SchemaDirectory(Path(text))


def avro_schema(text: str, others: Mapping[str, str] = {}) -> WriterSchema:
    """Return an Avro schema.

    Args:    others: the schemas of types that it refers to, by full name.
    Raises:  SchemaError.
    """
    text = with_references(text, others) if others else text
    return WriterSchema("AVRO", text, value_type=avro_type(text))


def json_schema(text: str, others: Mapping[str, str] = {}) -> WriterSchema:
    """Return a JSON Schema.

    Args:    others: the documents that it refers to, by name.
    Raises:  SchemaError.
    """
    return WriterSchema("JSON", text, value_type=json_schema_type(text, others))


def _protobuf_schema(text: str, others: Mapping[str, str]) -> WriterSchema:
    """Return a Protobuf schema of files as a registry serializes them."""
    try:
        if not others:
            return WriterSchema("PROTOBUF", descriptors=base64.b64decode(text, validate=True))
        files = []
        for name, data in (*others.items(), (_OUTERMOST, text)):
            file = FileDescriptorProto.FromString(base64.b64decode(data, validate=True))
            file.name = name  # of the import; a registry calls all its files alike
            files.append(file)
    except ValueError:
        raise SchemaError("the registry gives Protobuf schemas as text only") from None
    except DecodeError as error:
        raise SchemaError(f"not a FileDescriptorProto of Protobuf: {error}") from None
    whole = FileDescriptorSet(file=files).SerializeToString()
    return WriterSchema("PROTOBUF", descriptors=whole)


def _of_registry(kind: str, text: str, others: Mapping[str, str]) -> WriterSchema:
    if kind == "AVRO":
        return avro_schema(text, others)
    if kind == "JSON":
        return json_schema(text, others)
    if kind == "PROTOBUF":
        return _protobuf_schema(text, others)
    raise SchemaError(f"its type is {kind}, not AVRO, JSON or PROTOBUF")


def _named(name: str, make: Any) -> WriterSchema:
    """Return a schema; an error names it."""
    try:
        made: WriterSchema = make()
        return made
    except (SchemaError, UnicodeDecodeError) as error:
        raise SchemaError(f"{name}: {error}") from None
