"""Builds the source of a function, and answers the questions of both writers on a schema."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from records.codegen import runtime
from records.schema import ArrayOf, Message, RowOf, StructOf, WireType
from records.wire import Fixed, Sized


class Source:
    """Lines of a function, and the constants that they name."""

    def __init__(self, head: str) -> None:
        self.lines = [head]
        self.depth = 1
        self.constants: dict[str, Any] = {}
        self._numbers = count()

    def __call__(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Write the line `head`, and indent the lines written inside the `with` block."""
        self(head)
        self.depth += 1
        yield
        self.depth -= 1

    def name(self, prefix: str) -> str:
        """Return a variable name that the generated function does not contain yet."""
        return f"{prefix}{next(self._numbers)}"

    def constant(self, value: Any) -> str:
        """Return the literal of a value, or the name of a constant that is set to the value."""
        if value is None or isinstance(value, (bool, int, str, bytes)):
            return repr(value)
        for name, known in self.constants.items():
            if known is value:
                return name
        name = self.name("K")
        self.constants[name] = value
        return name

    def text(self) -> str:
        """Return all source code generated so far."""
        return "\n".join(self.lines)

    def compile(self, title: str) -> Any:
        """Compile the generated function; tracebacks show `title` as its file name."""
        namespace = {**vars(runtime), **self.constants}
        before = set(namespace)
        exec(compile(self.text(), f"<codec {title}>", "exec"), namespace)
        (name,) = set(namespace) - before - {"__builtins__"}
        return namespace[name]


def min_size(wire_type: WireType, version: int, *, flexible: bool, nullable: bool = False) -> int:
    """Return the minimum size in bytes of an encoded value, which limits an array's count."""
    match wire_type:
        case Fixed():
            return wire_type.size
        case Sized(name="string"):
            return 1 if flexible else 2
        case RowOf():
            return sum(column.size for _, column in wire_type.columns) + flexible
        case StructOf() if nullable:
            return 1
        case StructOf():
            plain, _ = wire_type.message.schema().fields_at(version, flexible=flexible)
            sizes = (
                min_size(f.type, version, flexible=flexible, nullable=version in f.nullable)
                for f in plain
            )
            return max(1, sum(sizes) + flexible)
        case _:
            return 1 if flexible else 4


def holds_records(cls: type[Message]) -> bool:
    """Return whether messages of a class hold record batches, which must not be copied."""

    def holds(wire_type: WireType) -> bool:
        match wire_type:
            case Sized(name):
                return name == "records"
            case ArrayOf(element):
                return holds(element)
            case StructOf(message):
                return holds_records(message)
            case _:
                return False

    return any(holds(field.type) for field in cls.schema().fields)
