"""Requests and responses: messages that share an api key."""

from records.schema import Message


class Request(Message):
    """What one node asks another; the schema's key is the api key."""


class Response(Message):
    """The answer to the request of the same key, at the request's version."""
