"""What the requests of every version are about: names and ids that are there, and that are not."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from records.rpc.base import Request
from tests.versions.nodes import BROKER

BENCH: Final = "esker-bench-log"
METADATA: Final = "__cluster_metadata"
STRANGER: Final = 102  # a broker that is registered, and stays fenced
NOWHERE: Final = UUID(int=77)
GROUP, MEMBERS = "offsets", "members"
OWNED: Final = "owned"  # a group of the log of groups only
YEAR_MS: Final = 365 * 86_400_000


@dataclass(kw_only=True)
class Scene:
    """A cluster with topic t, a record in it, a group with offsets, and one with a member."""

    listener: str
    version: int
    leader_epoch: int
    broker_epoch: int = -1
    topic_id: UUID = NOWHERE
    topic: str = "t"
    bench_id: UUID = NOWHERE
    lease_id: int = -1
    object_id: int = -1
    object_key: str = ""
    member_id: str = ""
    generation: int = -1
    alone: dict[str, str] = field(default_factory=dict)  # group with one member: the member
    ownership_epoch: int = -1

    @property
    def log(self) -> str:
        """A log of records behind this listener."""
        return self.topic if self.listener == BROKER else BENCH

    @property
    def log_id(self) -> UUID:
        return self.topic_id if self.listener == BROKER else self.bench_id

    @property
    def new(self) -> str:
        """A name for something that is made at this version."""
        return f"new-{self.listener}-{self.version}"

    @property
    def soon_ms(self) -> int:
        return time.time_ns() // 1_000_000 + 600_000


Ask = Callable[[Scene], tuple[Request, ...]]
