"""Decides about finalised features: the levels that every node supports.

A level is finalised only if this code, every registered broker and every registered controller
support it; and a node that registers later must support what is finalised. All updates of a request
are made, or none. A downgrade must be requested as one.

Source: KIP-584, KIP-778; upstream's FeatureControlManager.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from coordinator.controller.decide.context import Context, Decision
from coordinator.controller.errors import RefusedError
from coordinator.controller.image import MetadataImage
from records.kafka_errors import ErrorCode
from records.metadata import FeatureLevelRecord
from records.rpc.brokers import UpdateFeaturesRequest, UpdateFeaturesResponse

UPGRADE: Final = 1
SAFE_DOWNGRADE: Final = 2
UNSAFE_DOWNGRADE: Final = 3
MAX_UPDATES: Final = 64
METADATA_VERSION: Final = "metadata.version"


def unsupported_feature(
    image: MetadataImage, supported: Mapping[str, tuple[int, int]]
) -> str | None:
    """Describe a finalised feature outside the supported ranges; None if there is none."""
    for name in sorted(image.features):
        level = image.features[name]
        lowest, highest = supported.get(name, (0, 0))
        if not lowest <= level <= highest:
            return f"{name} at level {level} (its range is {lowest}..{highest})"
    return None


def update_features(request: UpdateFeaturesRequest, context: Context) -> Decision:
    """Finalise features at other levels, all or none; level 0 removes a feature."""
    updates = request.feature_updates
    errors: dict[str, RefusedError] = {}
    records = []
    seen: set[str] = set()
    for update in updates[:MAX_UPDATES]:
        kind = update.upgrade_type
        if update.allow_downgrade:  # the field of version 0
            kind = SAFE_DOWNGRADE
        try:
            if update.feature in seen:
                raise _invalid(f"{update.feature} is named twice.", ErrorCode.INVALID_REQUEST)
            seen.add(update.feature)
            _check_update(update.feature, update.max_version_level, kind, context)
        except RefusedError as refused:
            errors[update.feature] = refused
            continue
        if context.image.features.get(update.feature, 0) != update.max_version_level:
            records.append(
                FeatureLevelRecord(name=update.feature, feature_level=update.max_version_level)
            )
    if not updates or len(updates) > MAX_UPDATES:
        code = ErrorCode.INVALID_REQUEST
        message = f"{len(updates)} updates; there must be 1 to {MAX_UPDATES}."
        return Decision((), UpdateFeaturesResponse(error_code=code, error_message=message))
    result = UpdateFeaturesResponse.UpdatableFeatureResult
    if not errors:
        done = tuple(result(feature=update.feature, error_message=None) for update in updates)
        kept = () if request.validate_only else tuple(records)
        return Decision(kept, UpdateFeaturesResponse(error_message=None, results=done))
    first = next(iter(errors.values()))
    results = tuple(
        result(
            feature=update.feature,
            error_code=errors.get(update.feature, first).code,
            error_message=errors[update.feature].message
            if update.feature in errors
            else "Another update of the request was refused.",
        )
        for update in updates
    )
    return Decision(
        (),
        UpdateFeaturesResponse(error_code=first.code, error_message=first.message, results=results),
    )


def _invalid(message: str, code: ErrorCode = ErrorCode.INVALID_UPDATE_VERSION) -> RefusedError:
    return RefusedError(code, message)


def _check_update(name: str, level: int, kind: int, context: Context) -> None:
    """Check that this code and every registered node support a feature's level.

    Raises RefusedError.
    """
    now = context.image.features.get(name, 0)
    if kind not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        raise _invalid(f"{name}: upgrade type {kind} is unknown.", ErrorCode.INVALID_REQUEST)
    if name not in context.features:
        raise _invalid(f"The controller does not know a feature {name!r}.")
    lowest, highest = context.features[name]
    if level < 0 or (level and not lowest <= level <= highest):
        raise _invalid(f"The controller supports {name} {lowest}..{highest}, not {level}.")
    if level == 0 and name == METADATA_VERSION:
        raise _invalid(f"{name} cannot be removed.")
    if level < now and kind == UPGRADE:
        raise _invalid(f"{name} is at {now}: {level} would be a downgrade.")
    if level > now and kind != UPGRADE:
        raise _invalid(f"{name} is at {now}: {level} is not a downgrade.")
    if level:
        for node, low, high in _ranges(name, context.image):
            if not low <= level <= high:
                raise _invalid(f"{node} supports {name} {low}..{high}, not {level}.")


def _ranges(name: str, image: MetadataImage) -> Iterator[tuple[str, int, int]]:
    """Yield each registered node with its range of levels; (0, 0) if it names none."""
    for broker_id in sorted(image.brokers):
        yield f"Broker {broker_id}", *_range(name, image.brokers[broker_id].features)
    for controller_id in sorted(image.controllers):
        yield (
            f"Controller {controller_id}",
            *_range(name, image.controllers[controller_id].features),
        )


def _range(name: str, features: tuple[object, ...]) -> tuple[int, int]:
    for feature in features:
        if feature.name == name:  # type: ignore[attr-defined]
            return feature.min_supported_version, feature.max_supported_version  # type: ignore[attr-defined]
    return 0, 0
