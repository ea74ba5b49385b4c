"""Serializers: sagas as JSON."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from orchestrix.saga.commands import NEVER
from orchestrix.saga.state import Instance, StateChange


def moment(value: datetime) -> str:
    """RFC 3339 in UTC with six digits and `Z`."""
    return value.astimezone(UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def perhaps(value: datetime | None) -> str | None:
    """`moment`, where there is one that will ever come."""
    return None if value is None or value >= NEVER else moment(value)


def named(instance: Instance, key_name: str) -> dict[str, Any]:
    """An instance of a saga whose names are called `key_name`."""
    return {"id": instance.id, key_name: instance.key, **_shared(instance)}


def instance(instance: Instance, key_name: str | None = None) -> dict[str, Any]:
    """An instance of any saga. Those of a resource keep their `key_name` too."""
    names = {key_name: instance.key} if key_name is not None else {}
    return {"id": instance.id, "saga": instance.saga, "key": instance.key, **names, **_shared(instance)}


def _shared(instance: Instance) -> dict[str, Any]:
    return {
        "createdBy": instance.created_by,
        "state": instance.state,
        "version": instance.version,
        "correlationId": instance.correlation_id,
        "createdAt": moment(instance.created_at),
        "updatedAt": moment(instance.updated_at),
        "attempt": instance.attempt,
        "wakeAt": perhaps(instance.wake_at),
        "wakeReason": instance.wake_reason,
        "blocker": instance.blocker,
        "deadlineAt": perhaps(instance.limit),
        "data": dict(instance.data),
    }


def change(change: StateChange) -> dict[str, Any]:
    """One row of history."""
    return {
        "version": change.version,
        "fromState": change.from_state,
        "toState": change.to_state,
        "reason": change.reason,
        "actor": change.actor,
        "correlationId": change.correlation_id,
        "causedBy": change.caused_by,
        "commandId": change.command_id,
        "at": moment(change.at),
    }


def etag(instance: Instance) -> str:
    """The entity tag of `instance`: its version.

    Everything that is shown of it changes with the version, but for the wake-up: how the machine waits is no change
    that anybody has to decide upon anew.
    """
    return f'"{instance.version}"'
