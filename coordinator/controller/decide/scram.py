"""Decides about users' SCRAM credentials: verifiers are stored, passwords never arrive.

A client salts the password itself and sends the salted one; the controller keeps what verifies it
(`StoredKey`, `ServerKey`) and nothing from which it could be computed. Each user's changes are
decided for themselves.

The sentences are Kafka's: its tools print them.

Source: KIP-554; upstream's ScramControlManager.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from coordinator.controller.decide.context import Context, Decision
from coordinator.controller.errors import RefusedError
from coordinator.controller.image import MetadataImage
from raft.net.scram import MAX_ITERATIONS, MIN_ITERATIONS, SCRAM
from records.kafka_errors import ErrorCode
from records.metadata import RemoveUserScramCredentialRecord, UserScramCredentialRecord
from records.rpc.security import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from records.schema import MetadataRecord

MAX_USERS: Final = 100_000
MAX_NAME_BYTES: Final = 1_024
MAX_SALT_BYTES: Final = 1_024

_HASHES: Final = {scram.number: scram for scram in SCRAM.values()}
_Deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion
_Upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
_Result = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult


def alter_scram(request: AlterUserScramCredentialsRequest, context: Context) -> Decision:
    """Store and remove users' SCRAM credentials, or return an error for each refused user."""
    changes: tuple[_Deletion | _Upsertion, ...] = (*request.deletions, *request.upsertions)
    limit = context.limits.max_items_of_request
    if len(changes) > limit:
        text = f"A request may name at most {limit} of them."
        return _answer(
            (), {change.name: (ErrorCode.POLICY_VIOLATION, text) for change in changes[:limit]}
        )
    times = Counter(change.name for change in changes)
    results: dict[str, tuple[ErrorCode, str] | None] = {}
    records: list[MetadataRecord] = []
    added = 0
    for change in changes:
        try:
            if times[change.name] > 1:
                raise RefusedError(
                    ErrorCode.DUPLICATE_RESOURCE,
                    "A user credential cannot be altered twice in the same request",
                )
            record = _record(change, context.image)
            if isinstance(record, UserScramCredentialRecord):
                is_new = (change.name, change.mechanism) not in context.image.security.scrams
                if is_new and len(context.image.security.scrams) + added >= MAX_USERS:
                    raise RefusedError(
                        ErrorCode.POLICY_VIOLATION, f"there are {MAX_USERS} credentials already"
                    )
                added += is_new
            records.append(record)
            results[change.name] = None
        except RefusedError as refused:
            results[change.name] = (refused.code, refused.message)
    return _answer(records, results)


def _answer(
    records: Iterable[MetadataRecord], results: dict[str, tuple[ErrorCode, str] | None]
) -> Decision:
    answers = tuple(
        _Result(user=name, error_message=None)
        if refusal is None
        else _Result(user=name, error_code=refusal[0], error_message=refusal[1])
        for name, refusal in results.items()
    )
    return Decision(tuple(records), AlterUserScramCredentialsResponse(results=answers))


def _record(change: _Deletion | _Upsertion, image: MetadataImage) -> MetadataRecord:
    """Return the metadata record of one change of SCRAM credentials. Raises RefusedError."""
    unacceptable = ErrorCode.UNACCEPTABLE_CREDENTIAL
    if not change.name:
        raise RefusedError(unacceptable, "Username must not be empty")
    scram = _HASHES.get(change.mechanism)
    if scram is None:
        raise RefusedError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if not isinstance(change, _Upsertion):
        if (change.name, change.mechanism) not in image.security.scrams:
            raise RefusedError(
                ErrorCode.RESOURCE_NOT_FOUND,
                "Attempt to delete a user credential that does not exist",
            )
        return RemoveUserScramCredentialRecord(name=change.name, mechanism=change.mechanism)
    if len(change.name.encode()) > MAX_NAME_BYTES:
        raise RefusedError(unacceptable, f"Username must not be longer than {MAX_NAME_BYTES} bytes")
    if change.iterations < MIN_ITERATIONS:
        raise RefusedError(unacceptable, "Too few iterations")
    if change.iterations > MAX_ITERATIONS:
        raise RefusedError(unacceptable, "Too many iterations")
    if not 0 < len(change.salt) <= MAX_SALT_BYTES:
        raise RefusedError(unacceptable, f"The salt must have 1 to {MAX_SALT_BYTES} bytes")
    if len(change.salted_password) != scram.size:
        raise RefusedError(
            unacceptable, f"A salted password of {scram.mechanism} has {scram.size} bytes"
        )
    credential = scram.credential(
        bytes(change.salted_password), bytes(change.salt), change.iterations
    )
    return UserScramCredentialRecord(
        name=change.name,
        mechanism=change.mechanism,
        salt=credential.salt,
        stored_key=credential.stored_key,
        server_key=credential.server_key,
        iterations=credential.iterations,
    )
