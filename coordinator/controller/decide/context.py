"""The inputs of a decision besides the request, and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from coordinator.controller.image import MetadataImage
from records.features import SUPPORTED
from records.schema import MetadataRecord
from records.types import Offset


@dataclass(frozen=True, slots=True)
class Decision:
    """Records to write together or not at all, and the response to send once they are committed."""

    records: Sequence[MetadataRecord]
    response: Any
    one_batch: bool = False  # must not be split into several batches, whatever its size


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The cluster's defaults, and the limits of one request."""

    default_partitions: int = 1  # num.partitions
    default_replication_factor: int = 1  # default.replication.factor
    max_partitions_of_topic: int = 100_000
    max_records_of_request: int = 12_000  # decided or refused as a whole
    max_topics: int = 100_000  # esker.max.topics; without the quorum's own
    max_partitions: int = 1_000_000  # esker.max.partitions; of all these topics
    max_items_of_request: int = 10_000  # topics, resources, chunks
    producer_id_block: int = 1_000


class Sessions(Protocol):
    """The broker sessions of the leader; see coordinator.controller.sessions."""

    def is_alive(self, broker_id: int, broker_epoch: int, *, fenced: bool) -> bool: ...


class Charge(Protocol):
    """What a request takes of its client's quota; see coordinator.controller.mutation_quotas."""

    @property
    def taken(self) -> int: ...

    def take(self, mutations: int) -> None: ...

    def give_back(self, mutations: int) -> None: ...

    def throttle_ms(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The pending image, and the inputs that a decision must not make up itself."""

    image: MetadataImage
    next_offset: Offset  # of the decision's first record
    now_ms: int  # the wall clock, for times in records
    cluster_id: str
    sessions: Sessions
    new_id: Callable[[], UUID]
    limits: Limits = field(default_factory=Limits)
    features: Mapping[str, tuple[int, int]] = field(default_factory=lambda: SUPPORTED)
    node_id: int = 0  # of the controller that decides
    voters: frozenset[int] = frozenset()  # ids of the controllers that must support a level
    charge: Charge | None = None  # of the client's quota of mutations; None: it has none

    def take(self, mutations: int) -> None:
        """Charge the client for created or deleted partitions. Raises RefusedError."""
        if self.charge is not None:
            self.charge.take(mutations)
