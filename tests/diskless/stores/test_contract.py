"""The contract of every object store.

Source: KIP-1163, ObjectStorage; docs/design/broker.md#object-stores.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest

from diskless.lineage import claim_key, has_conditional_writes, read_claim, write_claim
from diskless.stores import (
    ByteRange,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectStorage,
    RangeError,
    s3_client,
)

Open = Callable[[], ObjectStorage]


async def keys(store: ObjectStorage, prefix: str = "") -> list[str]:
    return [entry.key async for entry in store.list_objects(prefix)]


def test_an_object_uploaded_by_one_process_can_be_read_by_another_process(open_store: Open) -> None:
    async def claim() -> None:
        await open_store().upload("a/b/1", [b"one ", b"two"], 7)
        assert bytes(await open_store().fetch("a/b/1", ByteRange(0, 7))) == b"one two"
        assert bytes(await open_store().fetch("a/b/1", ByteRange(4, 2))) == b"tw"

    asyncio.run(claim())


def test_an_upload_whose_data_has_another_length_than_announced_stores_no_object(
    open_store: Open,
) -> None:
    async def claim() -> None:
        store = open_store()
        for size_bytes in (6, 8, 0, -1):
            with pytest.raises(ValueError, match="announced"):
                await store.upload("a", [b"one ", b"two"], size_bytes)
        assert await keys(store) == []

    asyncio.run(claim())


def test_a_second_upload_under_an_object_key_cannot_change_the_objects_bytes(
    open_store: Open,
) -> None:
    async def claim() -> None:
        store = open_store()
        await store.upload("a", [b"first"], 5)
        await store.upload("a", [b"fir", b"st"], 5)  # the same bytes: an answer that was lost
        for other in (b"other", b"longer than that", b""):
            with pytest.raises(ObjectExistsError):
                await store.upload("a", [other], len(other))
        assert bytes(await store.fetch("a", ByteRange(0, 5))) == b"first"

    asyncio.run(claim())


def test_exactly_one_of_many_concurrent_uploads_under_one_key_succeeds(open_store: Open) -> None:
    async def claim() -> None:
        store = open_store()
        bodies = [b"%04d" % number for number in range(16)]
        outcomes = await asyncio.gather(
            *(store.upload("a", [body], 4) for body in bodies), return_exceptions=True
        )
        won = [body for body, outcome in zip(bodies, outcomes, strict=True) if outcome is None]
        assert len(won) == 1
        assert bytes(await store.fetch("a", ByteRange(0, 4))) == won[0]
        assert all(isinstance(o, ObjectExistsError) for o in outcomes if o is not None)

    asyncio.run(claim())


def test_a_range_read_returns_exactly_the_requested_bytes_or_fails(open_store: Open) -> None:
    async def claim() -> None:
        store = open_store()
        await store.upload("a", [b"0123456789"], 10)
        assert bytes(await store.fetch("a", ByteRange(9, 1))) == b"9"
        assert bytes(await store.fetch("a", ByteRange(10, 0))) == b""
        for past in (ByteRange(10, 1), ByteRange(5, 6), ByteRange(0, 11), ByteRange(99, 1)):
            with pytest.raises(RangeError):
                await store.fetch("a", past)
        for negative in (ByteRange(-1, 2), ByteRange(0, -1)):
            with pytest.raises(ValueError, match="negative"):
                await store.fetch("a", negative)

    asyncio.run(claim())


def test_of_two_claims_of_one_timeline_one_wins_and_none_is_overwritten(open_store: Open) -> None:
    """Source: docs/design/restore.md#the-old-cluster-stops."""

    async def claim() -> None:
        store, key = open_store(), claim_key("p", "lineage", 1)
        assert await has_conditional_writes(store, "p", "new")
        assert await read_claim(store, key, 3) is None
        results = await asyncio.gather(
            *(write_claim(open_store(), key, name) for name in ("one", "two")),
            return_exceptions=True,
        )
        (lost,) = (result for result in results if result is not None)
        assert isinstance(lost, ObjectExistsError), lost
        winner = ("one", "two")[results.index(None)]
        await write_claim(store, key, winner)
        assert await read_claim(store, key, 3) == winner
        assert await keys(store) == [key]

    asyncio.run(claim())


def test_reading_a_missing_object_raises_object_not_found(open_store: Open) -> None:
    async def claim() -> None:
        store = open_store()
        await store.upload("a/b", [b"x"], 1)
        for key in ("b", "a", "a/c", "a/b/c"):
            for byte_range in (ByteRange(0, 1), ByteRange(0, 0)):
                with pytest.raises(ObjectNotFoundError):
                    await store.fetch(key, byte_range)

    asyncio.run(claim())


def test_bulk_deletion_of_objects_is_idempotent(open_store: Open) -> None:
    async def claim() -> None:
        store = open_store()
        names = [f"d/{number:04d}" for number in range(20)]
        for name in names:
            await store.upload(name, [b"x"], 1)
        await store.delete([*names[:10], "never/there"])
        await store.delete(names[:10])
        await store.delete([])
        assert await keys(store) == names[10:]

    asyncio.run(claim())


def test_an_object_store_lists_every_object_in_key_order(open_store: Open) -> None:
    async def claim() -> None:
        store = open_store()
        names = ["a", "a-b/1", "ab", "b/10", "b/2", "b/c/1", "b0"]
        for number, name in enumerate(names):
            await store.upload(name, [bytes(number)], number)
        found = [entry async for entry in store.list_objects("")]
        assert [entry.key for entry in found] == names == sorted(names)
        assert [entry.size_bytes for entry in found] == list(range(len(names)))
        assert all(entry.modified_ms > 1_600_000_000_000 for entry in found)
        assert await keys(store, "b/") == ["b/10", "b/2", "b/c/1"]
        assert await keys(store, "b/1") == ["b/10"]
        assert await keys(store, "nothing") == []

    asyncio.run(claim())


def test_an_object_store_listing_longer_than_one_page_returns_every_key(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_client, "LIST_PAGE", 50)

    async def claim() -> None:
        store = open_store()
        names = [f"{number % 7}/{number:05d}" for number in range(120)]
        await asyncio.gather(*(store.upload(name, [b""], 0) for name in names))
        found = await keys(store)
        assert sorted(found) == sorted(names)
        assert all(one < two for one, two in pairwise(found))

    asyncio.run(claim())


def test_the_directory_store_refuses_keys_that_would_leave_its_directory(open_store: Open) -> None:
    async def claim() -> None:
        store = open_store()
        for key in ("", "/a", "a/", "a//b", "../a", "a/../b", ".", "a/.hidden", "a b", "a\n", "ä"):
            with pytest.raises(ValueError, match="no object key"):
                await store.upload(key, [b"x"], 1)
            with pytest.raises(ValueError, match="no object key"):
                await store.fetch(key, ByteRange(0, 1))
            with pytest.raises(ValueError, match="no object key"):
                await store.delete([key])

    asyncio.run(claim())
