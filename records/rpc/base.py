"""Requests and responses: messages that share an api key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from records.schema import Message

R_co = TypeVar("R_co", bound="Response", covariant=True)


class Request(Message):
    """A request from one node to another; the schema's key is the api key."""


class Response(Message):
    """The answer to the request of the same key, at the request's version."""


class CoordinatorRequest(Request, Generic[R_co]):
    """A request to a batch coordinator; its class names the response, so that calls are typed."""

    if TYPE_CHECKING:

        @property
        def coordinator_partition(self) -> int:
            """Return the partition of `__diskless-metadata` whose coordinator gets this request."""
