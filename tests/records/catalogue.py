"""The catalogue in docs/records.md, made from the declarations."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from records.frame import CONTROL_RECORDS, METADATA_RECORDS
from records.rpc import API
from records.schema import ArrayOf, Field, Message, RowOf, Schema, StructOf, WireType
from records.wire import NEVER, Fixed, Sized, Versions

BEGIN = "<!-- the catalogue: written by `pytest tests/records/test_catalogue.py --rewrite` -->"
END = "<!-- end of the catalogue -->"


def catalogue() -> str:
    """All tables."""
    return "\n".join(
        [
            "### Metadata records",
            "",
            *_records(METADATA_RECORDS.values()),
            "",
            "### Control records",
            "",
            *_records(CONTROL_RECORDS.values()),
            "",
            "### RPCs",
            "",
            *_rpcs(),
        ]
    )


def _records(classes: object) -> Iterator[str]:
    yield "| type | record | versions | fields |"
    yield "| --: | --- | --- | --- |"
    for cls in sorted(classes, key=lambda cls: cls.schema().key):  # type: ignore[call-overload]
        schema = cls.schema()
        fields = "; ".join(_field(field, schema) for field in schema.fields) or "(none)"
        yield f"| {schema.key} | {schema.name} | {schema.versions} | {fields} |"


def _field(field: Field, schema: Schema) -> str:
    marks = []
    present = field.versions & schema.versions
    if present != schema.versions:
        marks.append(_upwards(present, schema.versions))
    if field.tag is not None:
        marks.append(f"tag {field.tag}")
    null = "?" if field.nullable & schema.versions != NEVER else ""
    suffix = f" ({', '.join(marks)})" if marks else ""
    return f"`{field.name}` {_type(field.type)}{null}{suffix}"


def _upwards(present: Versions, whole: Versions) -> str:
    return f"v{present.first}+" if present.last == whole.last else f"v{present}"


def _type(wire_type: WireType) -> str:
    match wire_type:
        case Fixed(name) | Sized(name):
            return name
        case ArrayOf(element):
            return _type(element) + "[]"
        case StructOf(message):
            inner = (
                f"{field.name} {_type(field.type)}{'?' * (field.nullable != NEVER)}"
                for field in message.schema().fields
            )
            return "{" + ", ".join(inner) + "}"
        case RowOf(_, columns):
            return "{" + ", ".join(f"{name} {column.name}" for name, column in columns) + "}"


def _rpcs() -> Iterator[str]:
    yield "| key | RPC | versions | flexible | the request |"
    yield "| --: | --- | --- | --- | --- |"
    for key, api in API.items():
        schema = api.request.schema()
        name = schema.name.removesuffix("Request")
        yield f"| {key} | {name} | {schema.versions} | {_flexible(schema)} | {_says(api.request)} |"


def _flexible(schema: Schema) -> str:
    shared = schema.flexible & schema.versions
    return f"{shared.first}+" if shared != NEVER else "none"


def _says(cls: type[Message]) -> str:
    """The first sentence of the docstring."""
    whole = " ".join((inspect.getdoc(cls) or "").split())
    return whole.split(". ")[0].rstrip(".") + "."
