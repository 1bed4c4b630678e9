"""The contract of object stores for jobs, for a directory and a bucket alike.

Source: docs/design/broker.md#object-stores, docs/design/pipeline.md#spark-deletes-nothing.
"""

from __future__ import annotations

import ast
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

import diskless.stores
import spark_jobs
from diskless.stores import StorageError
from diskless.stores.s3_client import S3Client
from raft.segments.files import RealFileSystem
from spark_jobs.readers.object_store import (
    MAX_READ_BYTES,
    ObjectStore,
    StoreOptions,
    open_store,
)
from tests.diskless.stores.conftest import new_bucket, s3_endpoint

__all__ = ["s3_endpoint"]

Opener = Callable[[str], ObjectStore]


@pytest.fixture(params=["directory", "s3"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Return a function that opens an empty store, at its top or below a prefix."""
    if request.param == "directory":
        (tmp_path / "objects").mkdir()
        return lambda below: open_store(str(tmp_path / "objects" / below))
    config = new_bucket(request.getfixturevalue("s3_endpoint"))
    options = StoreOptions(config.endpoint_url, config.region)
    return lambda below: open_store(f"s3://{config.bucket}/{below}", options)


@pytest.fixture
def store(opener: Opener) -> ObjectStore:
    """Return an empty store, pickled once as for a task."""
    opened: ObjectStore = pickle.loads(pickle.dumps(opener("")))
    return opened


def test_an_object_written_to_a_jobs_store_can_be_listed_sized_and_read(store: ObjectStore) -> None:
    store.write("7f/c/0/12", b"abcdef")
    (listed,) = store.list()
    assert (listed.key, listed.size_bytes) == ("7f/c/0/12", 6)
    assert store.head("7f/c/0/12") == listed
    assert store.read("7f/c/0/12", 0, 6) == b"abcdef"
    assert store.read("7f/c/0/12", 2, 3) == b"cde"
    assert store.read("7f/c/0/12", 6, 0) == b""


def test_the_directory_store_of_jobs_flushes_new_directories_before_it_writes_objects_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[Path] = []
    monkeypatch.setattr(RealFileSystem, "fsync_directory", lambda _, path: flushed.append(path))
    store = open_store(str(tmp_path))
    manifest = tmp_path / "manifest"
    store.write("manifest/a-0/1", b"")
    assert flushed == [manifest, tmp_path, manifest / "a-0"]
    store.write("manifest/a-0/2", b"")
    assert flushed[3:] == [manifest / "a-0"]
    store.write("manifest/a-1/1", b"")
    assert flushed[4:] == [manifest, manifest / "a-1"]


def test_the_directory_store_of_jobs_flushes_directories_that_a_dead_process_left_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "manifest" / "a-0").mkdir(parents=True)
    flushed: list[Path] = []
    monkeypatch.setattr(RealFileSystem, "fsync_directory", lambda _, path: flushed.append(path))
    store = open_store(str(tmp_path))
    for name in ("1", "2"):
        store.write(f"manifest/a-0/{name}", b"")
    assert flushed.count(tmp_path) == flushed.count(tmp_path / "manifest") == 1


def test_writing_an_object_replaces_the_object_of_the_same_key(store: ObjectStore) -> None:
    store.write("manifest", b"first")
    store.write("manifest", b"second, longer")
    assert store.read("manifest", 0, 14) == b"second, longer"
    assert [found.key for found in store.list()] == ["manifest"]


def test_writing_a_new_object_under_an_existing_key_fails_and_keeps_the_old_bytes(
    store: ObjectStore,
) -> None:
    assert store.write_new("plan/0", b"mine")
    assert not store.write_new("plan/0", b"yours")
    assert store.read("plan/0", 0, 4) == b"mine"
    assert [found.key for found in store.list()] == ["plan/0"]


def test_the_object_store_of_jobs_lists_the_keys_below_a_prefix_in_order(
    store: ObjectStore,
) -> None:
    keys = ["00/c/0/1", "00/c/0/10", "00/c/0/9", "00/c/1/1", "0a/c/0/2", "a-b", "a/b", "a=b"]
    for key in reversed(keys):
        store.write(key, b"x")
    assert [found.key for found in store.list()] == sorted(keys)
    assert [found.key for found in store.list("00/c/0/1")] == ["00/c/0/1", "00/c/0/10"]
    assert [found.key for found in store.list("0")] == sorted(keys)[:5]
    assert list(store.list("nothing/")) == []


def test_the_object_store_of_jobs_lists_every_key_of_several_pages(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diskless.stores.s3_client.LIST_PAGE", 3)
    keys = [f"{n:04}" for n in range(10)]
    for key in keys:
        store.write(key, b"")
    assert [found.key for found in store.list()] == keys


@pytest.mark.parametrize("more", [{}, {"NextContinuationToken": "same"}])
def test_a_truncated_store_listing_without_a_continuation_token_raises_an_error(
    more: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some servers implement S3's listings incompletely."""
    monkeypatch.setattr(S3Client, "request", lambda *_, **__: {"IsTruncated": True, **more})
    with pytest.raises(StorageError, match="does not say where it continues"):
        list(open_store("s3://bucket", StoreOptions(region="us-east-1")).list("7f/"))


def test_an_object_store_with_a_prefix_lists_only_objects_below_the_prefix(opener: Opener) -> None:
    opener("one").write("k", b"1")
    opener("two").write("k", b"2")
    assert [found.key for found in opener("one").list()] == ["k"]
    assert opener("one").read("k", 0, 1) == b"1"
    assert {found.key for found in opener("").list()} == {"one/k", "two/k"}


def test_reading_a_missing_object_or_range_raises_an_error(store: ObjectStore) -> None:
    store.write("k", b"abc")
    assert store.head("other") is None
    for key, start, size in (("other", 0, 1), ("other", 0, 0), ("k", 2, 2), ("k", 5, 1)):
        with pytest.raises(StorageError):
            store.read(key, start, size)


@pytest.mark.parametrize("kind", ["directory", "s3"])
def test_listing_a_missing_object_store_raises_an_error_instead_of_returning_no_object(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if kind == "s3":
        options = StoreOptions(request.getfixturevalue("s3_endpoint"), "us-east-1")
        missing = open_store("s3://no-such-bucket", options)
    else:
        missing = open_store(str(tmp_path / "not-mounted"))
    with pytest.raises(StorageError):
        list(missing.list())
    with pytest.raises(StorageError, match="no such"):
        missing.head("k")


def test_an_object_store_refuses_invalid_keys_and_unbounded_ranges(store: ObjectStore) -> None:
    for key in ("../k", "/etc/passwd", "a//b", ""):
        with pytest.raises(ValueError, match="object key"):
            store.write(key, b"")
        with pytest.raises(ValueError, match="object key"):
            store.head(key)
        with pytest.raises(ValueError, match="object key"):
            store.read(key, 0, 1)
    for start, size in ((-1, 1), (0, -1), (0, MAX_READ_BYTES + 1)):
        with pytest.raises(ValueError, match="range"):
            store.read("k", start, size)


def test_a_storage_error_survives_pickling_with_its_key_and_message() -> None:
    error = pickle.loads(pickle.dumps(StorageError("k", "gone")))
    assert (type(error), error.key, str(error)) == (StorageError, "k", "k: gone")


def test_the_object_store_of_jobs_does_not_list_an_unfinished_upload_as_an_object(
    tmp_path: Path,
) -> None:
    (tmp_path / ".uploading-1234").write_bytes(b"x")
    assert list(open_store(str(tmp_path)).list()) == []


@pytest.mark.parametrize("uri", ["", "s3://", "s3:///p", "gs://bucket", "http://h/p"])
def test_opening_an_invalid_store_address_raises_an_error(uri: str) -> None:
    with pytest.raises(ValueError, match="s3://BUCKET"):
        open_store(uri)


def test_a_directory_store_opened_by_a_relative_path_is_the_same_in_any_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pickled = pickle.dumps(open_store("archive"))
    (tmp_path / "worker").mkdir()
    monkeypatch.chdir(tmp_path / "worker")
    assert pickle.loads(pickled).uri == str(tmp_path / "archive")


def test_the_object_store_of_jobs_cannot_delete_an_object() -> None:
    """By name: no code of jobs, nor of the stores they may import, calls what deletes an object.

    The modules of `diskless.stores` that jobs may import are listed in tests/test_layers.py.
    """
    jobs = sorted(Path(spark_jobs.__file__).parent.rglob("*.py"))
    stores = Path(diskless.stores.__file__).parent
    shared = [stores / name for name in ("interface.py", "object_directory.py", "s3_client.py")]
    for path in (*jobs, *shared):
        tree = ast.parse(path.read_text())
        names = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
        texts = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)}
        forbidden_names = {"delete_object", "delete_objects", "rmtree"}
        if path.name == "spark_session.py":  # it removes the scratch directory made for a JVM
            forbidden_names.remove("rmtree")
        for forbidden in sorted(forbidden_names):
            assert forbidden not in names | texts, f"{path.name}: {forbidden}"
