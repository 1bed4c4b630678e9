"""Assembles a broker's services and the handlers of its requests.

All listeners share one set of services; only handlers whose answers contain addresses exist per
listener.

Source: docs/design/broker.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib.metadata import version as installed_version
from pathlib import Path
from random import Random
from typing import Any, Final
from uuid import UUID

from coordinator.controller.access import AccessTable
from coordinator.controller.chunk_placement import keeps
from coordinator.controller.decide.configs import process_settings
from coordinator.controller.image import MetadataImage
from coordinator.groups.settings import GroupSettings
from coordinator.transactions.settings import TransactionSettings
from diskless.access.gate import Gate
from diskless.apis import (
    acls,
    chunks,
    configs,
    forwarded,
    offsets,
    quotas,
    replicas,
    security,
    telemetry,
    topics,
    transaction_markers,
    transactions,
)
from diskless.apis.cluster import ClusterApis
from diskless.apis.configs import OwnSetting
from diskless.apis.groups import GroupApis
from diskless.apis.handler import on_broker
from diskless.apis.producers import ProducerApis, ProducerIds
from diskless.apis.records import RecordApis
from diskless.apis.transaction_calls import TransactionCalls
from diskless.backup.cut import BackupLog
from diskless.backup.hold import DeletionHold
from diskless.backup.shipper import BackupSettings, Shipper
from diskless.cluster import Cluster
from diskless.compaction.child import ChildWorker
from diskless.compaction.service import Rewriting, RewritingSettings
from diskless.fetch.commit_notifications import CommitNotifications
from diskless.fetch.local_segments.cache import LocalSegments, LocalSegmentsSettings
from diskless.fetch.local_segments.directory import other_directories
from diskless.fetch.local_segments.filler import SegmentFiller
from diskless.fetch.local_segments.format import TopicPartition
from diskless.fetch.local_segments.warming import ChunkWarming
from diskless.fetch.object_cache import CacheSettings, ObjectCache
from diskless.fetch.read_ahead import ReadAheadSettings
from diskless.fetch.service import FetchService
from diskless.fetch.staleness import Staleness
from diskless.lineage import Lineage
from diskless.metrics import BrokerCollector
from diskless.object_deletion import Cleaner
from diskless.produce.in_flight import InFlight
from diskless.produce.object_writer import WriterSettings
from diskless.produce.service import ProduceService
from diskless.produce.spreading import ProducerSpreading
from diskless.produce.writers import Writers
from diskless.quotas.rates import Windows
from diskless.quotas.throttling import Throttling
from diskless.stores.watched import WatchedStore
from diskless.topic_metrics import TopicCollector
from diskless.traffic import Traffic
from diskless.transactions.owner import TransactionOwner
from diskless.transactions.proofs import TransactionProofs
from diskless.zones import ZoneTraffic
from raft.net import ServerConnection
from raft.net.handlers import Served
from records import record_checks
from records.rpc.batch_coordinator import CommitBatchesResponse

PRODUCE: Final = 0


class Services:
    """The services of one broker. Belongs to the event loop."""

    def __init__(
        self,
        cluster: Cluster,
        store: WatchedStore,
        values: Mapping[str, Any],
        *,
        own: Sequence[OwnSetting] = (),
        wall_ms: Callable[[], int],
        random: Random,
        on_fenced: Callable[[], None],
        on_superseded: Callable[[Exception], None] = lambda _: None,
        received_at: Callable[[], float],
        access: AccessTable | None = None,
        logs: Callable[[], Iterable[BackupLog]] = tuple,
    ) -> None:
        """Create a broker's services, such as produce and fetch; `start` starts their tasks.

        Args:  values: parsed settings by name. own: the same as text.
               on_fenced: called when a coordinator knows a newer epoch of this broker.
               on_superseded: called when the cluster was restored under another id.
               received_at: when a part of a large request last arrived, on the loop's clock.
               access: what clients may do; None: everything.
               logs: gives the open logs of the quorum on this broker, for backups.
        """
        self._cluster = cluster
        self._store = store
        self._wall_ms = wall_ms
        self._random = random
        self._values = values
        self.access = access
        self._gate = None if access is None else Gate(access, lambda: cluster.image)
        self.lineage = Lineage(
            store,
            key_prefix=values["esker.object.key.prefix"],
            cluster_id=cluster.cluster_id,
            image=lambda: cluster.image,
            timeout_s=values["esker.lineage.timeout.ms"] / 1_000,
            on_superseded=on_superseded,
        )
        self.traffic = Traffic(cluster.image.topics)
        cluster.on_image(self.traffic.on_image)
        self.backup = self._make_backup(logs)
        self.news = CommitNotifications()
        cluster.on_image(lambda _: self.news.notify())
        cluster.on_commit(lambda _: self.news.notify())
        self.cache = ObjectCache(
            store, CacheSettings(max_bytes=values["esker.fetch.cache.max.bytes"])
        )
        self.segments = self._make_segments()
        self.in_flight = InFlight(values["esker.append.max.in.flight.bytes"])
        self.writers = self._make_writers(on_fenced, received_at)
        cluster.on_image(self._change_settings)
        self.staleness = Staleness(
            cluster.replica_age_ms, file_delete_delay_ms=values["diskless.file.delete.delay.ms"]
        )
        self.spreading = ProducerSpreading(cluster.broker_id, clock=asyncio.get_running_loop().time)
        cluster.on_image(self.spreading.on_image)
        self.produce = self._make_produce()
        self.fetch = FetchService(
            cluster,
            cache=self.cache,
            news=self.news,
            staleness=self.staleness,
            traffic=self.traffic,
            read_ahead=ReadAheadSettings(
                max_bytes=min(
                    values["esker.fetch.read.ahead.max.bytes"],
                    values["esker.fetch.cache.max.bytes"] // 2,
                )
            ),
            segments=self.segments,
        )
        self.filler = self._make_filler()
        self.warming = self._make_warming()
        self.throttling = Throttling(
            cluster,
            Windows(values["quota.window.num"], values["quota.window.size.seconds"] * 1_000),
            idle_ms=lambda: int(values["connections.max.idle.ms"]),
        )
        self.zones = ZoneTraffic(lambda: values["broker.rack"] or None)
        self.records = RecordApis(
            self.produce,
            self.fetch,
            self.zones,
            gate=self._gate,
            fetch_limit=self.throttling.fetch_limit,
        )
        self.groups = GroupApis(
            cluster,
            GroupSettings.of(values),
            wall_ms=wall_ms,
            random=random,
            ask_transaction_log=cluster.ask_transactions,
            gate=self._gate,
        )
        self.clusters = ClusterApis(
            cluster,
            create=topics.Topics(cluster).create,
            auto_create=values["auto.create.topics.enable"],
            num_partitions=values["num.partitions"],
        )
        producer_ids = ProducerIds(cluster)
        self.transactions = TransactionCalls(
            cluster,
            TransactionOwner(cluster),
            producer_ids,
            max_timeout_ms=TransactionSettings.of(values).max_timeout_ms,
        )
        self.producers = ProducerApis(producer_ids, self.transactions.init)
        self.cleaner = self._make_cleaner()
        self.rewriting = self._make_rewriting()
        self._cleans = False
        self.collector = self._make_collector()
        self._shared = self._handlers(own)
        self.large: Collection[int] = {PRODUCE, *self.groups.handlers}

    def _make_segments(self) -> LocalSegments | None:
        """Return the local segments of this broker, or None without a directory for them."""
        values = self._values
        if not values["esker.cache.dir"]:
            return None
        return LocalSegments(
            LocalSegmentsSettings(
                directory=Path(values["esker.cache.dir"]),
                cluster_id=self._cluster.cluster_id,
                node_id=self._cluster.broker_id,
                max_bytes=values["esker.cache.max.bytes"],
                fill_bytes_per_second=values["esker.cache.fill.max.bytes.per.second"],
                others=other_directories(values),
            ),
            wall_ms=self._wall_ms,
            keeps=self._keeps,
        )

    def _keeps(self, partition: TopicPartition, first: int, last: int) -> bool:
        """Return whether this broker keeps local segments of these offsets, both inclusive."""
        cluster = self._cluster
        return keeps(cluster.image, cluster.broker_id, *partition, first, last)

    def _make_warming(self) -> ChunkWarming | None:
        if self.segments is None:
            return None
        return ChunkWarming(
            self._cluster,
            self.segments,
            store=self._store,
            cache=self.cache,
            look_up=self.fetch.runs_of,
            epochs=self.fetch.epochs_to_stamp,
        )

    def _make_filler(self) -> SegmentFiller | None:
        if self.segments is None:
            return None
        deadline_ms = self._values["esker.delete.physical.max.ms"]
        return SegmentFiller(
            self._cluster,
            self.segments,
            cache=self.cache,
            look_up=self.fetch.runs_of,
            epochs=self.fetch.epochs_to_stamp,
            stale_s=float("inf") if deadline_ms < 0 else deadline_ms / 4_000,
        )

    def _on_committed(self, response: CommitBatchesResponse) -> None:
        """Have the written batches kept in local segments."""
        if self.filler is None:
            return
        for topic in response.topics:
            for partition in topic.partitions:
                offsets = [
                    row.assigned_base_offset for row in partition.results if not row.error_code
                ]
                if offsets:
                    written = TopicPartition(topic.topic_id, partition.partition_index)
                    self.filler.note_written(written, min(offsets))

    def _make_writers(
        self, on_fenced: Callable[[], None], received_at: Callable[[], float]
    ) -> Writers:
        return Writers(
            cluster=self._cluster,
            store=self._store,
            key_prefix=self._values["esker.object.key.prefix"],
            settings=WriterSettings.of(self._values),
            random=self._random,
            on_fenced=on_fenced,
            on_written=self.cache.add,
            on_committed=self._on_committed,
            received_at=received_at,
            is_living=self._is_living,
        )

    def _make_backup(self, logs: Callable[[], Iterable[BackupLog]]) -> Shipper | None:
        settings = BackupSettings.of(self._values)
        if not settings.is_enabled:
            return None
        return Shipper(
            self._store,
            logs,
            self._cluster,
            settings,
            release=installed_version("esker"),
            is_living=lambda: self.lineage.is_proved,
            clock=asyncio.get_running_loop().time,
            wall_ms=self._wall_ms,
        )

    def _is_living(self) -> bool:
        """Return whether what this broker acknowledges is sure to stay.

        It is not if the cluster was restored elsewhere, or its logs contradict their backup.
        """
        is_contradicted = self.backup is not None and self.backup.contradiction is not None
        return self.lineage.is_proved and not is_contradicted

    def _make_produce(self) -> ProduceService:
        return ProduceService(
            self._cluster,
            writer=self.writers.writer,
            now_ms=self._wall_ms,
            in_flight=self.in_flight,
            closing=self.writers.closing,
            max_decompressed_bytes=self._values["esker.produce.max.decompressed.bytes"],
            store_fault=lambda: self._store.fault,
            spreading=self.spreading,
            proofs=TransactionProofs(self._cluster),
            gate=self._gate,
            traffic=self.traffic,
        )

    def _make_cleaner(self) -> Cleaner:
        return Cleaner(
            self._cluster,
            self._store,
            key_prefix=self._values["esker.object.key.prefix"],
            random=self._random,
            interval_s=self._values["esker.file.delete.interval.ms"] / 1_000,
            forget=self.cache.forget,
            lineage=self.lineage,
            hold=None if self.backup is None else DeletionHold(self.backup, self._cluster.replica),
        )

    def _make_rewriting(self) -> Rewriting:
        values = self._values
        max_bytes_per_second = values["esker.compaction.max.bytes.per.second"]
        return Rewriting(
            self._cluster,
            ChildWorker(values, max_bytes_per_second=max_bytes_per_second),
            RewritingSettings.of(values),
            wall_ms=self._wall_ms,
            random=self._random,
        )

    def _make_collector(self) -> BrokerCollector:
        return BrokerCollector(
            self._cluster,
            produce=self.produce,
            fetch=self.fetch,
            writers=self.writers,
            in_flight=self.in_flight,
            cache=self.cache,
            cleaner=self.cleaner,
            backup=self.backup,
            rewriting=self.rewriting,
            staleness=self.staleness,
            throttling=self.throttling,
            unknown_racks=lambda: self.clusters.unknown_racks,
            zones=self.zones,
            topics=TopicCollector(
                self._cluster, self.traffic, self._values["esker.metrics.max.series"]
            ),
            segments=self.segments,
        )

    def _handlers(self, own: Sequence[OwnSetting]) -> Mapping[int, Served]:
        """Return the handlers that all listeners share, by api key."""
        cluster = self._cluster
        return {
            **self.records.handlers(),
            **self.groups.handlers,
            **self.producers.handlers,
            **self.transactions.handlers,
            **topics.handlers(cluster),
            **offsets.handlers(cluster, self.cache),
            **configs.handlers(cluster, own),
            **chunks.handlers(cluster, self._wall_ms),
            **forwarded.handlers(cluster),
            **replicas.handlers(cluster),
            **acls.handlers(cluster, has_authorizer=self._gate is not None),
            **security.handlers(cluster),
            **quotas.handlers(cluster),
            **telemetry.handlers(lambda: UUID(int=self._random.getrandbits(128), version=4)),
            **transactions.handlers(cluster, self._wall_ms),
            **transaction_markers.handlers(cluster),
        }

    def _change_settings(self, image: MetadataImage) -> None:
        """Apply the broker settings that a new cluster image changes while this broker runs."""
        dynamic = process_settings(image, self._cluster.broker_id)
        self.writers.change(WriterSettings.of({**self._values, **dynamic}))

    def handlers(self, listener_name: str) -> Mapping[int, Served]:
        """Return the handlers of a listener's requests, except ApiVersions, by api key."""
        table = {**self._shared, **self.clusters.handlers(listener_name)}
        names_clients = self.throttling.names_clients
        return {key: on_broker(served, self._gate, names_clients) for key, served in table.items()}

    def connection_closed(self, connection: ServerConnection) -> None:
        """Cancel the waiting requests of a closed connection."""
        self.records.connection_closed(connection)
        self.spreading.forget(connection)
        self.throttling.muting.connection_closed(connection)

    async def begin_segments(self) -> None:
        """Claim the directory of local segments and find what is in it.

        Raises:  CacheDirectoryError if an operator must decide about the directory.
        """
        if self.segments is not None:
            await self.segments.begin()

    def start(self) -> None:
        """Start the background tasks of a registered broker."""
        self._cleans = True
        if self.filler is not None:
            self.filler.start()
        if self.warming is not None:
            self.warming.start()
        self.lineage.start()
        self.cleaner.start()
        self.rewriting.start()
        if self.backup is not None:
            self.backup.start()
        asyncio.get_running_loop().run_in_executor(None, record_checks.load)

    def begin_epoch(self, epoch: int, *, is_fenced: bool) -> None:
        """Start to serve under this broker epoch, but redirect clients while `is_fenced`."""
        if epoch != self.writers.epoch:
            self.writers.begin(epoch)
            self.rewriting.begin(epoch)
        self.groups.set_fenced(is_fenced)

    def end_epoch(self) -> None:
        """Stop writing and coordinating groups, because the broker's epoch has ended."""
        self.writers.end()
        self.rewriting.end()
        self.groups.set_fenced(is_fenced=True)

    async def leave(self, timeout_s: float) -> None:
        """Accept no more requests, write the accepted batches, and answer their requests."""
        if self._cleans:
            await self.lineage.close()
            await self.cleaner.close()
            await self.rewriting.close()
            if self.backup is not None:
                await self.backup.close()
        await self.groups.close()
        self.fetch.leave()
        self.writers.flush()
        await self.writers.close(timeout_s)

    async def close(self) -> None:
        """Close all services and the store; no client may be connected any more."""
        self.throttling.close()
        await self.clusters.close()
        await self.producers.close()
        await self.fetch.close()
        if self.filler is not None:
            await self.filler.close()
        if self.warming is not None:
            await self.warming.close()
        if self.segments is not None:
            await self.segments.close()
        await self.cache.close()
        await self._store.close()
