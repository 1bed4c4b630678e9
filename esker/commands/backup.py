"""`esker backup`: list, verify, request and release the backups of a cluster's logs.

The commands read and write the object store alone, so they work when no node is left.

Source: docs/design/backup.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from esker.commands.base import CommandGroup
from esker.commands.cluster_access import AsJson
from esker.commands.storage import load_nodes_or_exit
from esker.commands.text_tables import show, table

if TYPE_CHECKING:
    from diskless.backup.bucket import Bucket

app = CommandGroup("List, verify, request and release backups of the quorum's logs.")

LIST_EXAMPLE = "Example: esker backup list --config broker101.properties"
VERIFY_EXAMPLE = "Example: esker backup verify --config broker101.properties --all"
NOW_EXAMPLE = "Example: esker backup now --config broker101.properties"
RELEASE_EXAMPLE = "Example: esker backup release --config broker101.properties"

POLL_S: Final = 0.5

Config = Annotated[
    Path,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Properties file of a broker, which names the object store and the prefix of backups.",
    ),
]
ClusterId = Annotated[
    str | None,
    typer.Option(
        "--backup-cluster",
        metavar="ID",
        help="Id of the cluster, if the store has backups of several; default: the only one.",
    ),
]


@app.callback(epilog=LIST_EXAMPLE)
def backup() -> None:
    """List, verify, request and release backups of the quorum's logs."""


@app.command("list", epilog=LIST_EXAMPLE)
def list_(config: Config, cluster_id: ClusterId = None, as_json: AsJson = False) -> None:
    """List the backups, and which of them can be restored."""
    found = _run(config, cluster_id, _list)
    rows = [
        (
            str(one["number"]),
            one["writtenAt"],
            str(one.get("brokerId", "-")),
            str(one.get("bytes", "-")),
            one["state"],
        )
        for one in found["backups"]
    ]
    show(found, table(("NUMBER", "WRITTEN", "BROKER", "BYTES", "STATE"), rows), as_json=as_json)


@app.command(epilog=VERIFY_EXAMPLE)
def verify(
    config: Config,
    cluster_id: ClusterId = None,
    every: Annotated[
        bool,
        typer.Option("--all", help="Every backup that can be restored; default: the newest one."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Read backups whole, and compare their bytes with their checksums; exit with 1 for a fault."""
    found = _run(config, cluster_id, lambda bucket: _verify(bucket, every=every))
    text = "\n".join(found["faults"]) or (
        f"{found['verified']} backups are sound, up to number {found['newest']}."
    )
    show(found, text, as_json=as_json)
    if found["faults"]:
        raise typer.Exit(1)


@app.command(epilog=NOW_EXAMPLE)
def now(
    config: Config,
    cluster_id: ClusterId = None,
    timeout_ms: Annotated[
        int,
        typer.Option("--timeout-ms", min=1, help="Milliseconds to wait; default: 120000."),
    ] = 120_000,
    as_json: AsJson = False,
) -> None:
    """Wait for a backup of all that is committed now, written by the brokers of the cluster."""
    timeout_s = timeout_ms / 1_000
    found = _run(config, cluster_id, lambda bucket: _now(bucket, timeout_s), waits_s=timeout_s)
    text = f"Backup {found['number']} has all that was committed when this command began."
    show(found, text, as_json=as_json)


@app.command(epilog=RELEASE_EXAMPLE)
def release(config: Config, cluster_id: ClusterId = None, as_json: AsJson = False) -> None:
    """Give up all backups but the newest, so that what they hold is deleted from the store."""
    found = _run(config, cluster_id, _release)
    given_up = ", ".join(map(str, found["givenUp"])) or "none"
    text = f"Backup {found['number']} is the only one that can be restored. Given up: {given_up}."
    show(found, text, as_json=as_json)


# --- what they do ---------------------------------------------------------------------------------


async def _list(bucket: Bucket) -> dict[str, Any]:
    from diskless.backup.manifest import BackupError

    backups: list[dict[str, Any]] = []
    oldest = None
    for listed in reversed(await bucket.list_manifests()):
        one: dict[str, Any] = {
            "number": listed.number,
            "writtenAt": datetime.fromtimestamp(listed.modified_ms / 1_000, UTC).isoformat(
                timespec="seconds"
            ),
        }
        try:
            manifest = await bucket.read_manifest(listed)
        except BackupError as error:
            one |= {"state": "damaged", "fault": str(error)}
        else:
            oldest = manifest.oldest.number if oldest is None else oldest
            one |= {
                "state": "restorable" if listed.number >= oldest else "expired",
                "cut": manifest.cut,
                "brokerId": manifest.broker_id,
                "bytes": manifest.size_bytes,
                "logs": [{"log": log.name, "endOffset": log.end} for log in manifest.logs],
            }
        backups.append(one)
    return {"clusterId": bucket.cluster_id, "backups": backups[::-1]}


async def _verify(bucket: Bucket, *, every: bool) -> dict[str, Any]:
    from diskless.backup.manifest import BackupError
    from diskless.backup.verify import verify_cut

    faults: list[str] = []
    verified, oldest, sound = set[str](), 0, 0
    listed = await bucket.list_manifests()
    for one in reversed(listed):
        if one.number < oldest:
            break
        try:
            manifest = await bucket.read_manifest(one)
        except BackupError as error:
            faults.append(str(error))
        else:
            found = await verify_cut(bucket, manifest, verified)
            faults += found
            sound += not found
            oldest = max(oldest, manifest.oldest.number)
        if not every:
            break
    return {
        "clusterId": bucket.cluster_id,
        "newest": listed[-1].number if listed else None,
        "verified": sound,
        "faults": faults,
    }


async def _now(bucket: Bucket, timeout_s: float) -> dict[str, Any]:
    """Ask for backups until one was begun after this call.

    Backup number n + 1 does not exist yet. A cut for number n + 2 begins after that, so it is new.
    """
    listed = await bucket.list_manifests()
    wanted = listed[-1].number + 2
    until = time.monotonic() + timeout_s
    asked = 0
    while True:
        newest = listed[-1]
        manifest = await bucket.read_manifest(newest) if newest.number >= wanted else None
        if manifest is not None and manifest.cut >= wanted:
            return {"clusterId": bucket.cluster_id, "number": manifest.number}
        if time.monotonic() > until:
            from esker.restore.errors import RestoreError

            raise RestoreError(
                f"no broker wrote a backup within {timeout_s:.0f} s: do brokers run with "
                "esker.backup.enable=true? /health of each says what fails"
            )
        for number in range(max(asked, newest.number) + 1, max(wanted, newest.number + 1) + 1):
            await bucket.request(number)
            asked = number
        await asyncio.sleep(POLL_S)
        listed = await bucket.list_manifests()


async def _release(bucket: Bucket) -> dict[str, Any]:
    from diskless.backup.bucket import TakenError

    while True:
        listed = await bucket.list_manifests()
        released = (await bucket.read_manifest(listed[-1])).as_only_cut()
        try:
            await bucket.write_manifest(released)
        except TakenError:
            continue  # a broker was faster: release what it wrote
        return {
            "clusterId": bucket.cluster_id,
            "number": released.number,
            "givenUp": [one.number for one in listed[:-1]],
        }


def _run(
    config: Path,
    cluster_id: str | None,
    work: Callable[[Bucket], Awaitable[dict[str, Any]]],
    waits_s: float = 0.0,
) -> dict[str, Any]:
    """Run `work` on the backup of a cluster; an error prints one line and exits with 1.

    Args:    waits_s: for the first backup of a cluster.
    """
    from diskless.backup.manifest import BackupError
    from diskless.stores import StorageError, StoreSettingError
    from diskless.stores.opening import open_store
    from esker.restore.backups import BackupSource, NoBackupError, find_bucket
    from esker.restore.errors import RestoreError

    source = BackupSource(settings=load_nodes_or_exit(config)[0], cluster_id=cluster_id)

    async def on_loop() -> dict[str, Any]:
        store = open_store(source.settings.values)
        until = time.monotonic() + waits_s
        try:
            while True:
                try:
                    bucket = await find_bucket(store, source)
                    break
                except NoBackupError:
                    if time.monotonic() >= until:
                        raise
                await asyncio.sleep(POLL_S)
            return await work(bucket)
        finally:
            await store.close()

    try:
        return asyncio.run(on_loop())
    except (RestoreError, BackupError, StorageError, StoreSettingError, OSError) as error:
        typer.echo(f"esker: {error}", err=True)
        raise typer.Exit(1) from None
