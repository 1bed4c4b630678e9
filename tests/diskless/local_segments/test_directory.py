"""Which directories a broker claims, and what it says of others.

Source: docs/design/local-segments.md#the-directory.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from diskless.fetch.local_segments.directory import CacheDirectoryError, claim


def claims(path: Path, cluster_id: str = "c-1", node_id: int = 1, others=()):
    return claim(path, cluster_id=cluster_id, node_id=node_id, others=others)


def refused(path: Path, **more) -> str:
    with pytest.raises(CacheDirectoryError) as caught:
        claims(path, **more)
    return str(caught.value)


def test_a_directory_is_made_claimed_and_claimed_again(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    claims(path).release()
    assert "cluster.id=c-1\nnode.id=1\n" in (path / "meta.properties").read_text()
    claims(path).release()


def test_a_directory_of_two_brokers_is_refused_to_the_second(tmp_path: Path) -> None:
    first = claims(tmp_path / "cache")
    assert "used by another process: name a directory for each broker" in refused(
        tmp_path / "cache"
    )
    first.release()
    claims(tmp_path / "cache").release()


def test_a_directory_of_another_cluster_or_node_is_refused_and_both_are_named(
    tmp_path: Path,
) -> None:
    path = tmp_path / "cache"
    claims(path).release()
    before = sorted(path.iterdir())
    for more in ({"cluster_id": "c-2"}, {"node_id": 2}):
        text = refused(path, **more)
        assert "belongs to node 1 of cluster c-1, this is node" in text
        assert "remove the directory, or name another" in text
    assert sorted(path.iterdir()) == before
    claims(path).release()


def test_a_directory_with_files_of_others_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    assert "no cache of Esker (photos): name an empty directory" in refused(tmp_path)
    assert [child.name for child in tmp_path.iterdir()] == ["photos"]


def test_a_symbolic_link_a_file_and_a_path_without_parent_are_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    text = refused(tmp_path / "link")
    assert f"is a symbolic link: name the directory itself, {tmp_path / 'real'}" in text
    assert not list((tmp_path / "real").iterdir())
    (tmp_path / "file").touch()
    assert "is not a directory" in refused(tmp_path / "file")
    assert f"there is no directory {tmp_path / 'away'}" in refused(tmp_path / "away" / "cache")


@pytest.mark.parametrize("other", ["cache", "cache/logs", "."])
def test_a_directory_that_shares_files_with_another_use_is_refused(
    tmp_path: Path, other: str
) -> None:
    others = [("log.dirs", tmp_path / other)]
    text = refused(tmp_path / "cache", others=others)
    assert f"shares a directory with log.dirs={tmp_path / other}" in text
    claims(tmp_path / "cache", others=[("log.dirs", tmp_path / "logs")]).release()


def test_a_disk_that_refuses_is_no_question_for_an_operator(tmp_path: Path, monkeypatch) -> None:
    def read_only(*_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: read_only())
    with pytest.raises(OSError, match="Read-only"):
        claims(tmp_path / "cache")
