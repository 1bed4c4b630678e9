"""`esker dev` with its records in S3, and `esker dump-log` of objects that lie there.

moto's server speaks S3.

Source: docs/design/broker.md#object-stores, docs/design/running.md#one-command-for-a-newcomer.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path

from typer.testing import CliRunner

from diskless.stores.s3 import S3Config, S3Storage
from esker.cli import app
from esker.dev.cluster import Identity, Store
from esker.dev.store_probe import check_bucket
from tests.diskless.stores.conftest import s3_config, s3_endpoint
from tests.esker.commands.test_dump_wal import KEY, whole_object
from tests.esker.test_dev import free_port, running

__all__ = ["s3_config", "s3_endpoint"]  # fixtures

runner = CliRunner()


def put(config: S3Config, key: str, data: bytes) -> None:
    async def main() -> None:
        store = S3Storage(config)
        try:
            await store.upload(key, [data], len(data))
        finally:
            await store.close()

    asyncio.run(main())


def test_dump_log_finds_an_object_in_a_bucket_by_url_key_and_id(s3_config: S3Config) -> None:
    put(s3_config, KEY, whole_object())
    at = ["--endpoint", str(s3_config.endpoint_url), "--region", "us-east-1"]
    store = ["--store", f"s3://{s3_config.bucket}"]
    url = f"s3://{s3_config.bucket}/{s3_config.prefix}/{KEY}"
    for words in ([url], [*store, f"{s3_config.prefix}/{KEY}"], [*store, "4711"]):
        ran = runner.invoke(app, ["dump-log", "--verify", *at, *words])
        assert ran.exit_code == 0, ran.output
        assert (
            ran.stdout
            == f"sound    {url}: WAL segment object, 2 partitions, 3 batches, 4 records\n"
        )
    for words in (
        [f"s3://{s3_config.bucket}/none"], [*store, "4"], ["s3://no-such-bucket-here/0"],
    ):  # fmt: skip
        ran = runner.invoke(app, ["dump-log", *at, *words])
        assert (ran.exit_code, ran.stderr.count("\n")) == (2, 1), ran.output


def test_an_esker_dev_cluster_with_records_in_s3_resumes_after_a_restart(
    tmp_path: Path, s3_config: S3Config
) -> None:
    store = f"s3://{s3_config.bucket}"
    words = ["--endpoint", str(s3_config.endpoint_url), "--region", "us-east-1"]
    port = free_port()
    lines = "".join(f"{number}\n" for number in range(200))
    with running(tmp_path / "data", port, "--store", store, *words) as dev:
        assert re.search(rf"objects: +{store} at http", dev.said)
        dev.esker("produce", "--topic", "t", text=lines)
        said = dev.esker("dump-log", "--verify", "0")
        assert said.startswith(f"sound    {store}/")
        assert "as its coordinator has it" in said
        assert not (tmp_path / "data" / "objects").exists()
        dev.process.kill()  # its processes go when they notice
        dev.process.wait()
    with running(tmp_path / "data", port) as dev:  # where its records are, it knows
        read = dev.esker("consume", "--topic", "t", "--from-beginning", "--until-end")
        assert read == lines


def test_esker_dev_names_an_unwritable_bucket_before_it_creates_a_file(
    tmp_path: Path, s3_config: S3Config
) -> None:
    """Else a cluster is ready, and whoever writes to it hangs for a minute."""
    words = ["dev", "--dir", str(tmp_path), "--port", str(free_port())]
    at = ["--endpoint", str(s3_config.endpoint_url), "--region", "us-east-1"]
    nobody = ["--endpoint", f"http://127.0.0.1:{free_port()}", "--region", "us-east-1"]
    for bucket, where, why in (
        ("no-such-bucket-here", at, "no such bucket"),
        (s3_config.bucket, nobody, "Could not connect"),
    ):
        ran = runner.invoke(app, [*words, "--store", f"s3://{bucket}", *where])
        assert (ran.exit_code, ran.stderr.count("\n")) == (1, 1), ran.output
        assert f"s3://{bucket} at http" in ran.stderr
        assert why in ran.stderr
    assert not list(tmp_path.glob("quorum-*"))


def test_esker_dev_deletes_the_object_with_which_it_probes_a_bucket(s3_config: S3Config) -> None:
    store = Store(bucket=s3_config.bucket, endpoint=s3_config.endpoint_url, region=s3_config.region)
    check_bucket(Identity(cluster_id="c", store=store))

    async def listed() -> list[str]:
        left = S3Storage(replace(s3_config, prefix=""))
        try:
            return [one.key async for one in left.list_objects("")]
        finally:
            await left.close()

    assert asyncio.run(listed()) == []
