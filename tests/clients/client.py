"""What a scenario asks of a client library, whichever it is.

The interface is as narrow as the poorest of them, a command line tool, allows: send messages, read
a partition from some place on, be a member of a group. An adapter translates the library's own
errors to `Refused` with the protocol's number, which all of them know.

Waiting is always for something, with a deadline: `Reader.read` asks for a number of messages.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, NamedTuple, TypeAlias

from tests.waiting import DEADLINE_S

MESSAGE_TOO_LARGE: Final = 10
UNKNOWN_TOPIC_OR_PARTITION: Final = 3


class Refused(Exception):
    """The client says that it was not done, for a reason of the protocol (`code`), or its own."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(f"error {code}: {said}")
        self.code = code


class Message(NamedTuple):
    """To be sent."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int | None = None  # None: the client's clock


class Read(NamedTuple):
    """As a client hands it to its application."""

    partition: int
    offset: int
    value: bytes | None
    key: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes], ...]


class Last(NamedTuple):
    """Begin so many before the end."""

    count: int


class Since(NamedTuple):
    """Begin at the first record that is not older."""

    timestamp_ms: int


Start: TypeAlias = "int | Last | Since"
"""Where to begin: an offset, or one that the client asks the broker for."""

EARLIEST: Final = -2
"""As a `Start`: the first there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How to send."""

    acks: int = -1
    codec: str = "none"
    idempotent: bool = False
    partition: int | None = None  # None: as the client's partitioner has it
    max_request_bytes: int = 1_000_000  # what the client itself would refuse


PLAIN: Final = How()


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """How to be a member of a group."""

    instance: str | None = None  # static, by this name (KIP-345)
    cooperative: bool = False  # partitions that stay are never given up (KIP-429)


ORDINARY: Final = Membership()


class Reader(ABC):
    """Reads one partition, or, as a member of a group, what it is given."""

    @abstractmethod
    def poll(self, timeout_s: float) -> list[Read]:
        """What has come; nothing if nothing came in time. Raises Refused."""

    @abstractmethod
    def close(self) -> None:
        """Leave. A member commits where it is."""

    def read(self, count: int, *, timeout_s: float = DEADLINE_S) -> list[Read]:
        """So many messages at least. Raises AssertionError with what came, if they did not."""
        deadline = time.monotonic() + timeout_s
        got: list[Read] = []
        while len(got) < count:
            left_s = deadline - time.monotonic()
            assert left_s > 0, f"{len(got)} of {count} messages in {timeout_s} s: {got[-3:]}"
            got += self.poll(min(left_s, 0.5))
        return got

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Member(Reader):
    """One of a group."""

    @abstractmethod
    def assigned(self) -> frozenset[int]:
        """The partitions it has now. It must be polled to hear of changes."""

    def __enter__(self) -> Member:
        return self


class Transactional(ABC):
    """A producer that writes in transactions. Its methods raise Refused."""

    @abstractmethod
    def begin(self) -> None:
        """Begin a transaction."""

    @abstractmethod
    def send(self, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
        """Send records in the transaction, and wait until they are acknowledged."""

    @abstractmethod
    def send_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Commit a group's offsets in the transaction, as no member of the group."""

    @abstractmethod
    def commit(self) -> None:
        """Commit the transaction."""

    @abstractmethod
    def abort(self) -> None:
        """Abort the transaction."""

    @abstractmethod
    def close(self) -> None:
        """Close the producer; an open transaction is left as it is."""

    def __enter__(self) -> Transactional:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Client(ABC):
    """One library. Use as a context manager."""

    name: str

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    # --- messages -----------------------------------------------------------------------------

    @abstractmethod
    def send(
        self,
        topic: str,
        messages: Sequence[Message],
        how: How = PLAIN,
    ) -> list[tuple[int, int]] | None:
        """Send and wait until the client is content; (partition, offset) of each, if it tells.

        Raises:  Refused for the first message that failed.
        """

    @abstractmethod
    def follow(
        self, topic: str, partition: int, start: Start, *, committed_only: bool = False
    ) -> Reader:
        """Read a partition, belonging to no group.

        Args:  committed_only: isolation.level=read_committed.
        """

    @abstractmethod
    def join(self, group: str, topic: str, how: Membership = ORDINARY) -> Member:
        """Subscribe; begins at the earliest where nothing is committed."""

    def read(
        self, topic: str, count: int, start: Start = EARLIEST, partition: int = 0
    ) -> list[Read]:
        """So many messages of one partition."""
        with self.follow(topic, partition, start) as reader:
            return reader.read(count)

    # --- topics -------------------------------------------------------------------------------

    @abstractmethod
    def leaders(self, topic: str) -> dict[int, int]:
        """Leader by partition."""

    @abstractmethod
    def topics(self) -> frozenset[str]:
        """All there are."""

    def create_topic(self, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
        raise NotImplementedError(self.name)

    def delete_topic(self, topic: str) -> None:
        raise NotImplementedError(self.name)

    def create_partitions(self, topic: str, total: int) -> None:
        raise NotImplementedError(self.name)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        raise NotImplementedError(self.name)

    def describe_topic(self, topic: str) -> dict[str, str | None]:
        """Configs by name."""
        raise NotImplementedError(self.name)

    def alter_topic(self, topic: str, name: str, value: str) -> None:
        raise NotImplementedError(self.name)

    def replace_settings(self, topic: str, settings: Mapping[str, str]) -> None:
        """Replace all settings of a topic. Raises Refused."""
        raise NotImplementedError(self.name)

    def elect_leader(self, topic: str, partition: int) -> None:
        """Ask for an election of the preferred leader. Raises Refused."""
        raise NotImplementedError(self.name)

    def access_rules(self) -> int:
        """Return the number of all access rules. Raises Refused."""
        raise NotImplementedError(self.name)

    def add_access_rule(self, topic: str) -> None:
        """Add a rule about a topic. Raises Refused."""
        raise NotImplementedError(self.name)

    def credentials(self, *users: str) -> int:
        """Return the number of users with credentials, of the named or of all. Raises Refused."""
        raise NotImplementedError(self.name)

    # --- groups -------------------------------------------------------------------------------

    def list_groups(self) -> frozenset[str]:
        raise NotImplementedError(self.name)

    def describe_group(self, group: str) -> tuple[str, int]:
        """State, and how many members."""
        raise NotImplementedError(self.name)

    def delete_group(self, group: str) -> None:
        """Raises Refused."""
        raise NotImplementedError(self.name)

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """A group's offsets, as an administrator sees them."""
        raise NotImplementedError(self.name)

    # --- others -------------------------------------------------------------------------------

    def open_transactional(
        self, transactional_id: str, *, timeout_ms: int = 60_000
    ) -> Transactional:
        """Return a producer that has initialised its transactions. Raises Refused.

        Args:  timeout_ms: after which the broker aborts a transaction.
        """
        raise NotImplementedError(self.name)

    def begin_transactions(self, transactional_id: str) -> None:
        """As an application that is going to write in transactions. Raises Refused."""
        raise NotImplementedError(self.name)

    def close(self) -> None:  # noqa: B027  (most have nothing to end)
        """Ends what was begun."""

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
