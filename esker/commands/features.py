"""`esker features`: print and finalize the cluster's feature levels, as `kafka-features` does.

Source: KIP-584, KIP-778; docs/design/features.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version as installed_version
from typing import Annotated, Any, Final

import typer

from esker.commands.base import CommandGroup
from esker.commands.cluster_access import (
    AsJson,
    Controller,
    Server,
    Target,
    TimeoutMs,
    ask,
    fail,
    stop_on,
    target,
)
from esker.commands.feature_levels import parse_levels
from esker.commands.text_tables import show, table
from records.kafka_errors import ErrorCode
from records.rpc.brokers import UpdateFeaturesRequest, UpdateFeaturesResponse
from records.rpc.cluster import ApiVersionsRequest, ApiVersionsResponse

app = CommandGroup("Print and change the feature levels of a running cluster.")

DESCRIBE_EXAMPLE = "Example: esker features describe --json"
UPGRADE_EXAMPLE = "Example: esker features upgrade esker.version=2 --dry-run"
DOWNGRADE_EXAMPLE = "Example: esker features downgrade metadata.version=25"
TIMEOUT_MS: Final = 30_000

UPGRADE: Final = 1  # upgrade types of UpdateFeatures
SAFE_DOWNGRADE: Final = 2
UNSAFE_DOWNGRADE: Final = 3

Levels = Annotated[
    list[str],
    typer.Argument(
        metavar="NAME=LEVEL",
        help="Feature and its level to finalize, as NAME=LEVEL; may be repeated; all levels "
        "change or none.",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Only check that every node supports the levels; default: also finalize the levels.",
    ),
]


@app.callback(epilog=DESCRIBE_EXAMPLE)
def features() -> None:
    """Print and change the feature levels of a running cluster."""


@app.command(epilog=DESCRIBE_EXAMPLE)
def describe(
    bootstrap_controller: Controller = None,
    bootstrap_server: Server = None,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = TIMEOUT_MS,
) -> None:
    """Print the feature levels that the node supports, and those finalized in the cluster."""
    epoch, found = describe_features(target(bootstrap_controller, bootstrap_server), timeout_ms)
    show({"epoch": epoch, "features": found}, feature_table(found), as_json=as_json)


def describe_features(cluster: Target, timeout_ms: int) -> tuple[int, list[dict[str, Any]]]:
    """Return the epoch of the finalized features, and each feature's levels; may end the command.

    Without support in the node that answers, `min` and `max` are None.
    """
    request = ApiVersionsRequest(
        client_software_name="esker", client_software_version=installed_version("esker")
    )
    response = ask(cluster, request, ApiVersionsResponse, timeout_ms)
    stop_on("features", response.error_code, None)
    epoch = response.finalized_features_epoch
    if epoch < 0:
        fail("the node has not read the cluster's log yet: try again, or name another node")
    finalized = {one.name: one.max_version_level for one in response.finalized_features}
    supported = {one.name: one for one in response.supported_features}
    found = [
        {
            "name": name,
            "min": supported[name].min_version if name in supported else None,
            "max": supported[name].max_version if name in supported else None,
            "finalized": finalized.get(name, 0),
        }
        for name in sorted({*supported, *finalized})
    ]
    return epoch, found


def feature_table(features: Iterable[dict[str, Any]]) -> str:
    """Format features and their levels as a table."""
    rows = [
        (
            one["name"],
            "-" if one["min"] is None else f"{one['min']}-{one['max']}",
            str(one["finalized"]),
        )
        for one in features
    ]
    return table(("Feature", "Supported", "Finalized"), rows)


@app.command(epilog=UPGRADE_EXAMPLE)
def upgrade(
    feature: Levels,
    bootstrap_controller: Controller = None,
    bootstrap_server: Server = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = TIMEOUT_MS,
) -> None:
    """Finalize higher feature levels, which every broker and voter must support.

    A level with new formats cannot be left again, and nodes that do not support it are refused.
    """
    cluster = (bootstrap_controller, bootstrap_server)
    _update("upgraded", UPGRADE, feature, cluster, timeout_ms, dry_run=dry_run, as_json=as_json)


@app.command(epilog=DOWNGRADE_EXAMPLE)
def downgrade(
    feature: Levels,
    bootstrap_controller: Controller = None,
    bootstrap_server: Server = None,
    unsafe: Annotated[
        bool,
        typer.Option(
            "--unsafe",
            help="Request an unsafe downgrade, which may lose metadata; default: a safe downgrade.",
        ),
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    timeout_ms: TimeoutMs = TIMEOUT_MS,
) -> None:
    """Finalize lower feature levels if no formats were added in between; 0 disables a feature."""
    cluster = (bootstrap_controller, bootstrap_server)
    kind = UNSAFE_DOWNGRADE if unsafe else SAFE_DOWNGRADE
    _update("downgraded", kind, feature, cluster, timeout_ms, dry_run=dry_run, as_json=as_json)


def _update(
    verb: str,
    kind: int,
    texts: list[str],
    cluster: tuple[str | None, str | None],
    timeout_ms: int,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    levels = parse_levels(texts)
    update = UpdateFeaturesRequest.FeatureUpdateKey
    request = UpdateFeaturesRequest(
        timeout_ms=timeout_ms,
        feature_updates=tuple(
            update(feature=name, max_version_level=level, upgrade_type=kind)
            for name, level in levels.items()
        ),
        validate_only=dry_run,
    )
    response = ask(target(*cluster), request, UpdateFeaturesResponse, timeout_ms)
    if response.error_code == ErrorCode.INVALID_UPDATE_VERSION:
        message = (response.error_message or "").rstrip(".")
        fail(f"{message}. `esker features describe` prints the levels")
    stop_on("features", response.error_code, response.error_message)
    can = "can be" if dry_run else "was"
    text = "\n".join(f"{name} {can} {verb} to {level}." for name, level in levels.items())
    show({"features": levels, "dryRun": dry_run}, text, as_json=as_json)
