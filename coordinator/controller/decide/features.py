"""Decides about finalized features: the levels that every node supports.

A level is finalized only if this code, every registered broker and every voter support it, and a
node that registers later must support what is finalized. All updates of a request are made, or
none. A downgrade must be requested as one, and is refused where it would leave records that the
lower level cannot read.

The sentences are Kafka's, with a remedy added where there is one: its tools print them.

Source: KIP-584, KIP-778, KIP-1022; upstream's FeatureControlManager and ClusterControlManager;
docs/design/features.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Protocol

from coordinator.controller.decide.context import Context, Decision
from coordinator.controller.errors import RefusedError
from coordinator.controller.image import MetadataImage
from records.features import IMPLIED, NEW_FORMATS, Levels, missing_dependency
from records.kafka_errors import ErrorCode
from records.metadata import FeatureLevelRecord
from records.rpc.brokers import UpdateFeaturesRequest, UpdateFeaturesResponse

UPGRADE: Final = 1
SAFE_DOWNGRADE: Final = 2
UNSAFE_DOWNGRADE: Final = 3
MAX_UPDATES: Final = 64
MAX_NAME: Final = 100  # characters of a feature's name that an error message repeats

FAILED_FOR_ALL: Final = (
    "The update failed for all features since the following feature had an error: "
)


class SupportedFeature(Protocol):
    """A feature in a registration: of a broker or controller, in its request or its record."""

    @property
    def name(self) -> str: ...

    @property
    def min_supported_version(self) -> int: ...

    @property
    def max_supported_version(self) -> int: ...


def check_registration(
    kind: str, supported: Iterable[SupportedFeature], image: MetadataImage
) -> None:
    """Check that a registering node supports every finalized feature level.

    Args:    kind: "broker" or "controller".
    Raises:  RefusedError (UNSUPPORTED_VERSION).
    """
    supported = tuple(supported)
    for name, level in image.features.finalized.items():
        levels = _levels(name, supported)
        if level not in levels:
            raise RefusedError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Unable to register because the {kind} does not support finalized version {level} "
                f"of {name}. The {kind} wants a version between {levels.lowest} and "
                f"{levels.highest}, inclusive.",
            )


def update_features(request: UpdateFeaturesRequest, context: Context) -> Decision:
    """Finalize the requested feature levels, all or none; level 0 switches a feature off."""
    updates = request.feature_updates
    levels: dict[str, int] = {}
    try:
        if not 1 <= len(updates) <= MAX_UPDATES:
            raise RefusedError(
                ErrorCode.INVALID_REQUEST,
                f"{len(updates)} updates; there must be 1 to {MAX_UPDATES}.",
            )
        for update in updates:
            name, level = update.feature, update.max_version_level
            if name in levels:
                raise RefusedError(ErrorCode.INVALID_REQUEST, f"{name[:MAX_NAME]} is named twice.")
            # `allow_downgrade` is the field of version 0.
            kind = SAFE_DOWNGRADE if update.allow_downgrade else update.upgrade_type
            _check_update(name, level, kind, context)
            levels[name] = level
        _check_dependencies(levels, context.image)
    except RefusedError as refused:
        return Decision(
            (),
            UpdateFeaturesResponse(
                error_code=refused.code, error_message=FAILED_FOR_ALL + refused.message
            ),
        )
    records = tuple(
        FeatureLevelRecord(name=name, feature_level=level)
        for name, level in levels.items()
        if level != context.image.features.level(name)
    )
    result = UpdateFeaturesResponse.UpdatableFeatureResult
    response = UpdateFeaturesResponse(
        error_message=None,
        results=tuple(result(feature=name, error_message=None) for name in levels),
    )
    return Decision(() if request.validate_only else records, response)


def _check_dependencies(levels: Mapping[str, int], image: MetadataImage) -> None:
    """Check that each requested level has the levels of other features that it depends on.

    Raises RefusedError.
    """
    resulting = dict(image.features.finalized) | dict(levels)
    for name, level in levels.items():
        lacking = missing_dependency(name, resulting)
        if lacking is not None:
            raise RefusedError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"Invalid update version {level} for feature {name}. {lacking}. Upgrade that "
                "feature first, or both in one request.",
            )


def _check_update(name: str, level: int, kind: int, context: Context) -> None:
    """Check a feature's new level against the finalized level and all nodes' support.

    Raises RefusedError.
    """

    def refuse(reason: str) -> RefusedError:
        return RefusedError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Invalid update version {level} for feature {name[:MAX_NAME]}. {reason}",
        )

    current = context.image.features.level(name)
    if kind not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        raise refuse("The controller does not support the given upgrade type.")
    if level < 0:
        raise refuse("A feature version cannot be less than 0.")
    for reason in _reasons_not_supported(name, level, context):
        raise refuse(reason)
    if level < current and kind == UPGRADE:
        raise refuse(
            "Can't downgrade the version of this feature without setting the upgrade type to "
            "either safe or unsafe downgrade."
        )
    if level > current and kind != UPGRADE:
        raise refuse("Can't downgrade to a newer version.")
    if any(level < changed <= current for changed in NEW_FORMATS.get(name, ())):
        raise RefusedError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Unsupported {name} downgrade from {current} to {level}. "
            + (
                "Unsafe metadata downgrade is not supported in this version."
                if kind == UNSAFE_DOWNGRADE
                else "Refusing to perform the requested downgrade because it might delete "
                "metadata information."
            ),
        )


def _reasons_not_supported(name: str, level: int, context: Context) -> Iterator[str]:
    """Yield a sentence for each registered node that does not support a feature's level."""

    def judge(node: str, levels: Levels, remedy: str = "") -> Iterator[str]:
        if level in levels:
            return
        if levels.highest == 0:
            yield f"{node} does not support this feature.{remedy}"
        else:
            end = "." + remedy if remedy else ""  # Kafka's sentence has no full stop
            yield f"{node} only supports versions {levels.lowest}-{levels.highest}{end}"

    image = context.image
    own = Levels(*context.features.get(name, (0, 0)))
    yield from judge(f"Local controller {context.node_id}", own)
    for broker_id in sorted(image.brokers):
        yield from judge(
            f"Broker {broker_id}",
            _levels(name, image.brokers[broker_id].features),
            " Upgrade that broker, or unregister it if it was removed for good.",
        )
    for voter in sorted(context.voters):
        registered = image.controllers.get(voter)
        if registered is None:
            yield (
                f"controller {voter} has not registered, and may not support this feature. "
                "Start it, at this version of Esker."
            )
        else:
            yield from judge(
                f"Controller {voter}",
                _levels(name, registered.features),
                " Restart that controller at the version of Esker that the others have.",
            )


def _levels(name: str, supported: Iterable[SupportedFeature]) -> Levels:
    """Return the levels of a feature that a node supports.

    Of a feature that the node does not name, these are the implied level alone.
    """
    for feature in supported:
        if feature.name == name:
            return Levels(feature.min_supported_version, feature.max_supported_version)
    return Levels(IMPLIED.get(name, 0), IMPLIED.get(name, 0))
