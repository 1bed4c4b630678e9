"""From a declaration to its schema: what the codecs are derived from.

`Message` is the base of everything that travels: metadata records, control records, requests,
responses and the structures nested in them. A message is frozen, compared by value and built by
keyword. Its class keeps the schema (`Message.schema()`), read from the annotations (`records.wire`
says how they are written) once, when first asked for.

The surprise: hot arrays are not made of messages. An element declared as a `NamedTuple` of
fixed-size fields, a *row*, has the same bytes as a structure but is decoded by one C loop into
tuples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from records.types import ZERO_UUID
from records.wire import (
    ALWAYS,
    NEVER,
    UUID16,
    Fixed,
    Ignorable,
    NullableIn,
    Since,
    Sized,
    Tagged,
    Versions,
)

UNKNOWN_TAGGED_FIELDS = "unknown_tagged_fields"


@dataclass(frozen=True, slots=True)
class ArrayOf:
    """An array of one type; a tuple in Python."""

    element: WireType


@dataclass(frozen=True, slots=True)
class StructOf:
    """A nested structure: another message class."""

    message: type[Message]


@dataclass(frozen=True, slots=True)
class RowOf:
    """A structure of fixed-size fields that is a plain named tuple in Python."""

    row: type[tuple[Any, ...]]
    columns: tuple[tuple[str, Fixed], ...]


Encoder = Callable[[Any, Callable[[Any], None]], None]
"""Generated: (message, append) hands the message's bytes to `append`, part by part."""

Decoder = Callable[[Any, int, int], tuple[Any, int]]
"""Generated: (buffer, position, end) -> (message, position after it)."""

WireType = Fixed | Sized | ArrayOf | StructOf | RowOf


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a message. `default` is what a version without the field decodes to."""

    name: str
    type: WireType
    versions: Versions
    nullable: Versions
    tag: int | None
    tagged: Versions
    default: Any
    required: bool
    ignorable: bool

    @property
    def wire_name(self) -> str:
        """Return the field's name as Kafka writes it: `leader_epoch` is `LeaderEpoch`."""
        return "".join(word[:1].upper() + word[1:] for word in self.name.split("_"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """All that the codecs know of a message: its valid and flexible versions, and its fields."""

    name: str
    key: int | None
    versions: Versions
    flexible: Versions
    fields: tuple[Field, ...]

    def fields_at(self, version: int, *, flexible: bool) -> tuple[list[Field], list[Field]]:
        """Return a version's plain fields, and its tagged fields in the order of their tags."""
        plain, tagged = [], []
        for field in self.fields:
            if version not in field.versions:
                continue
            if flexible and field.tag is not None and version in field.tagged:
                tagged.append(field)
            else:
                plain.append(field)
        return plain, sorted(tagged, key=lambda field: field.tag or 0)


@dataclass_transform(kw_only_default=True, frozen_default=True)
class MessageMeta(msgspec.StructMeta):
    """Builds frozen, keyword-only classes and keeps what the class line says of the message."""

    _header: tuple[int | None, Versions, Versions]  # key, valid versions, flexible versions
    _schema: Schema | None
    _encoders: dict[int, Encoder]  # by version, filled at first use
    _decoders: dict[int, Decoder]

    def __new__(
        mcls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        key: int | None = None,
        versions: str = "0+",
        flexible: str = "0+",
    ) -> Any:
        if "__doc__" not in namespace and not namespace.get("__qualname__", "").count("."):
            raise TypeError(f"{name}: a message says what it is in a docstring")
        cls = super().__new__(mcls, name, bases, namespace, frozen=True, kw_only=True, gc=False)
        cls._header = (key, Versions.parse(versions), Versions.parse(flexible))
        cls._schema = None
        cls._encoders, cls._decoders = {}, {}
        return cls

    def __init__(cls, *_: Any, **__: Any) -> None:  # noqa: N805 (a metaclass's self is a class)
        """Ignore the keyword arguments of the class statement, which `__new__` has processed."""


if TYPE_CHECKING:
    _Struct = object  # msgspec's own declaration would hide that ours are keyword-only
else:
    _Struct = msgspec.Struct


class Message(_Struct, metaclass=MessageMeta):
    """A value that travels. Equal if all its fields are, the unknown tagged ones included."""

    unknown_tagged_fields: tuple[tuple[int, bytes], ...] = ()
    """Tagged fields without a name here: (tag, bytes) by rising tag, written back as read."""

    def __repr__(self) -> str:
        shown = [field.name for field in self.schema().fields]
        if self.unknown_tagged_fields:
            shown.append(UNKNOWN_TAGGED_FIELDS)
        return f"{type(self).__qualname__}({', '.join(f'{n}={getattr(self, n)!r}' for n in shown)})"

    @classmethod
    def schema(cls) -> Schema:
        """Return the schema of the message class.

        Raises TypeError if its declaration contradicts itself.
        """
        if cls._schema is None:
            cls._schema = _read_declaration(cls)
        return cls._schema

    @classmethod
    def number(cls) -> int | None:
        """Return the message's api key or record type, without building the whole schema."""
        return cls._header[0]


def _read_declaration(cls: type[Message]) -> Schema:
    key, versions, flexible = cls._header
    hints = get_type_hints(cls, include_extras=True)
    described = msgspec.structs.fields(cls)  # type: ignore[arg-type]
    required = {f.encode_name for f in described if f.required}
    defaults = {f.name: f.default for f in described}
    fields = tuple(
        _read_field(cls, name, hints[name], defaults[name], name in required)
        for name in cls.__struct_fields__
        if name != UNKNOWN_TAGGED_FIELDS
    )
    tags = [field.tag for field in fields if field.tag is not None]
    if len(tags) != len(set(tags)):
        raise TypeError(f"{cls.__name__}: a tag is used twice")
    return Schema(name=cls.__name__, key=key, versions=versions, flexible=flexible, fields=fields)


def _read_field(cls: type[Message], name: str, hint: Any, default: Any, required: bool) -> Field:
    where = f"{cls.__name__}.{name}"
    hint, marks = _strip_marks(hint)
    nullable = NEVER
    if get_origin(hint) in (Union, UnionType) and NoneType in get_args(hint):
        inner = [arm for arm in get_args(hint) if arm is not NoneType]
        if len(inner) != 1:
            raise TypeError(f"{where}: a union of more than one type and None")
        hint, more = _strip_marks(inner[0])
        marks += more
        nullable = ALWAYS
    present, tag, tagged, ignorable = ALWAYS, None, NEVER, False
    for mark in marks:
        match mark:
            case Since(versions):
                present = present & versions
            case Tagged(number, versions):
                tag, tagged = number, versions
            case NullableIn(versions):
                nullable = versions
            case Ignorable():
                ignorable = True
            case _:
                raise TypeError(f"{where}: unexpected mark {mark!r}")
    wire_type = _read_type(where, hint)
    if required and present != ALWAYS:
        raise TypeError(f"{where}: a field that some versions lack needs a default")
    return Field(
        name=name,
        type=wire_type,
        versions=present,
        nullable=nullable & present,
        tag=tag,
        tagged=tagged & present,
        default=zero(wire_type) if required else default,
        required=required,
        ignorable=ignorable,
    )


def _strip_marks(hint: Any) -> tuple[Any, list[Any]]:
    """Split a type hint into its type (with `Fixed` or `Sized`) and its other annotations."""
    marks: list[Any] = []
    if get_origin(hint) is Annotated:
        wire = [mark for mark in hint.__metadata__ if isinstance(mark, (Fixed, Sized))]
        marks = [mark for mark in hint.__metadata__ if not isinstance(mark, (Fixed, Sized))]
        hint = Annotated[hint.__origin__, wire[0]] if wire else hint.__origin__
    return hint, marks


def _read_type(where: str, hint: Any) -> WireType:
    if get_origin(hint) is Annotated:
        mark = hint.__metadata__[0]
        if isinstance(mark, (Fixed, Sized)):
            return mark
    if get_origin(hint) is tuple:
        element, ellipsis = get_args(hint)
        if ellipsis is ...:
            return ArrayOf(_read_type(where, element))
    if isinstance(hint, type) and issubclass(hint, Message):
        return StructOf(hint)
    if isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields"):
        return RowOf(hint, _read_columns(where, hint))
    raise TypeError(f"{where}: {hint!r} is not a wire type")


def _read_columns(where: str, row: type[tuple[Any, ...]]) -> tuple[tuple[str, Fixed], ...]:
    columns = []
    for name, hint in get_type_hints(row, include_extras=True).items():
        column = _read_type(f"{where}.{name}", hint)
        if not isinstance(column, Fixed) or column is UUID16:
            raise TypeError(f"{where}.{name}: a row holds numbers and booleans only")
        columns.append((name, column))
    return tuple(columns)


def zero(wire_type: WireType) -> Any:
    """Return Kafka's default for fields of this type without a declared default."""
    match wire_type:
        case Fixed(name="bool"):
            return False
        case Fixed(name="uuid"):
            return ZERO_UUID
        case Fixed(name="float64"):
            return 0.0
        case Fixed():
            return 0
        case Sized(name="string"):
            return ""
        case Sized():
            return b""
        case ArrayOf():
            return ()
        case _:
            return None


class MetadataRecord(Message):
    """A record of a state machine's log; the schema's key is its type (KIP-631, Record Format)."""


class ControlRecord(Message):
    """A record of the Raft layer itself; the schema's key is its control record type."""
