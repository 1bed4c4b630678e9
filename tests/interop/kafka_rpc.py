"""A client that speaks to Kafka with codecs that are not ours (`kio`).

    with Connection(port) as broker:
        broker.call("create_topics", 7, topics=[{"name": "orders", ...}])

Requests are written as plain values; `call` finds their classes by the fields' types.
"""

from __future__ import annotations

import importlib
import io
import socket
import struct
from dataclasses import fields, is_dataclass
from typing import Any, Final, get_args, get_origin, get_type_hints

from kio.serial import entity_reader, entity_writer

TIMEOUT_S: Final = 30
MAX_RESPONSE_BYTES: Final = 16 << 20
_SIZE: Final = struct.Struct(">i")


class RpcError(Exception):
    """A response with an error code in it."""


class Connection:
    """One connection to one listener."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self._correlation_id = 0

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def call(self, name: str, version: int, /, **values: Any) -> Any:
        """Send a request and return its response.

        Raises:  RpcError if any error code in the response is not 0; OSError.
        """
        module = f"kio.schema.{name}.v{version}"
        stem = name.title().replace("_", "")
        request_class = getattr(importlib.import_module(f"{module}.request"), f"{stem}Request")
        response_class = getattr(importlib.import_module(f"{module}.response"), f"{stem}Response")
        self._send(_build(request_class, values))
        payload = self._receive()
        _, size = entity_reader(response_class.__header_schema__)(payload, 0)
        response, _ = entity_reader(response_class)(payload, size)
        if any(_error_codes(response)):
            raise RpcError(f"{name} v{version}: {response}")
        return response

    def authenticate_plain(self, user: str, password: str) -> None:
        """SASL/PLAIN. Source: KIP-152."""
        self.call("sasl_handshake", 1, mechanism="PLAIN")
        token = f"\0{user}\0{password}".encode()
        self.call("sasl_authenticate", 2, auth_bytes=token)

    def _send(self, request: Any) -> None:
        self._correlation_id += 1
        header_class = type(request).__header_schema__
        header = header_class(
            request_api_key=type(request).__api_key__,
            request_api_version=type(request).__version__,
            correlation_id=self._correlation_id,
            client_id="interop",
        )
        buffer = io.BytesIO()
        entity_writer(header_class)(buffer, header)
        entity_writer(type(request))(buffer, request)
        self._socket.sendall(_SIZE.pack(len(buffer.getvalue())) + buffer.getvalue())

    def _receive(self) -> bytes:
        (size,) = _SIZE.unpack(self._read(_SIZE.size))
        assert 0 <= size <= MAX_RESPONSE_BYTES, f"a response of {size} bytes"
        return self._read(size)

    def _read(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = self._socket.recv(size - len(parts))
            if not part:
                raise ConnectionError(f"closed after {len(parts)} of {size} bytes")
            parts += part
        return bytes(parts)


def _build(cls: Any, values: dict[str, Any]) -> Any:
    """An instance of a kio class; a dict stands for an instance of the field's class."""
    hints = get_type_hints(cls)
    return cls(**{name: _convert(hints[name], value) for name, value in values.items()})


def _convert(hint: Any, value: Any) -> Any:
    if isinstance(value, list):
        elements = next(a for a in (hint, *get_args(hint)) if get_origin(a) is tuple)
        return tuple(_convert(get_args(elements)[0], element) for element in value)
    if isinstance(value, dict):
        (cls,) = (a for a in (hint, *get_args(hint)) if is_dataclass(a))
        return _build(cls, value)
    return value


def _error_codes(value: Any) -> Any:
    if isinstance(value, tuple):
        for element in value:
            yield from _error_codes(element)
    elif is_dataclass(value):
        for field in fields(value):
            content = getattr(value, field.name)
            if field.name.endswith("error_code"):
                yield content.value if hasattr(content, "value") else content
            else:
                yield from _error_codes(content)
