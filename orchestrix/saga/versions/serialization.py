"""Stored definitions: a saga as JSON, its digest, and the saga read back from it.

The digest covers what a run does: steps, states, immediate transitions, messages, jobs, times, policies and
compensations. Texts for readers and the model of the data are not part of it. Times are whole microseconds. What is not
set is left out, so that an option which a later release adds does not change the digest of a saga that does not use it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final

from pydantic import BaseModel

from orchestrix.saga.definition import Compensation, FreeData, Job, NothingToUndo, RetryPolicy, Saga, Step
from orchestrix.saga.errors import DefinitionError, OrchestrixError

FORMAT_VERSION: Final = 2
"""The newest format that this release reads. A change of meaning increments it."""
PLAIN_FORMAT: Final = 1
"""The format of a saga without jobs for groups of executors, which is 2: each is written in the oldest that has all of
it, so that nodes of an earlier release read what they can run."""
MICROSECOND: Final = timedelta(microseconds=1)
_READERS_ONLY: Final = ("why",)
"""Fields that change nothing about a run."""


class UnknownFormatError(OrchestrixError):
    """A stored definition that a newer release has written: this one cannot run it. Upgrade this node."""


def body_of(saga: Saga) -> dict[str, Any]:
    """`saga` without its model, as JSON."""
    return {
        "name": saga.name,
        "version": saga.version,
        "steps": [_encoded(step) for step in saga.steps],
        "immediate": dict(saga.immediate),
        **({} if saga.timeout is None else {"timeout": saga.timeout // MICROSECOND}),
    }


def form_of(body: Mapping[str, Any]) -> int:
    """The format in which `body_of` wrote it."""
    orders = [part for step in body["steps"] for part in (step, step.get("undo") or {})]
    return FORMAT_VERSION if any("group" in order.get("job", {}) for order in orders) else PLAIN_FORMAT


def digest_of(body: Mapping[str, Any]) -> str:
    """The SHA-256, in hexadecimal digits, of what a run of this definition does."""
    canonical = json.dumps(_without_texts(body), sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def saga_from(body: Mapping[str, Any], form: int, data: type[BaseModel] = FreeData) -> Saga:
    """The saga that `body_of` wrote, with `data` as its model. Raises `UnknownFormatError` for what a newer release
    wrote.
    """
    if form > FORMAT_VERSION:
        raise UnknownFormatError(f"form {form} of a stored definition is newer than this release: upgrade this node")
    try:
        return Saga(**_decoded(body, _SAGA), data=data)
    except (DefinitionError, KeyError, TypeError, ValueError) as wrong:
        raise UnknownFormatError(f"a stored definition cannot be read by this release: {wrong}") from wrong


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The differences between two bodies, a short sentence for each place, in the order of the steps."""
    return list(_differences(_named(_without_texts(old)), _named(_without_texts(new)), ""))


def _encoded(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value // MICROSECOND
    if isinstance(value, tuple):
        return [_encoded(part) for part in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (
            (one.name, getattr(value, one.name)) for one in dataclasses.fields(value) if one.name not in _idle(value)
        )
        encoded = {name: _encoded(part) for name, part in fields if part is not None and part != ""}
        return {"nothing": encoded} if isinstance(value, NothingToUndo) else encoded
    return value


def _idle(value: Any) -> tuple[str, ...]:
    """Its fields without effect: a job has a time and tries of its own."""
    return ("timeout", "retry") if isinstance(value, Step | Compensation) and value.job is not None else ()


def _span(value: Any) -> timedelta:
    return int(value) * MICROSECOND


def _policy(value: Mapping[str, Any]) -> RetryPolicy:
    return RetryPolicy(**_decoded(value, {"attempts": int, "base": _span, "cap": _span, "never": tuple}))


def _job(value: Mapping[str, Any]) -> Job:
    return Job(**_decoded(value, {"name": str, "queue": str, "timeout": _span, "retries": int, **_TARGET}))


def _undo(value: Mapping[str, Any]) -> Compensation | NothingToUndo:
    if "nothing" in value:
        return NothingToUndo(**_decoded(value["nothing"], {"why": str}))
    return Compensation(**_decoded(value, _ORDER))


def _steps(value: Any) -> tuple[Step, ...]:
    return tuple(Step(**_decoded(step, _STEP)) for step in value)


Decoders = Mapping[str, Callable[[Any], Any]]
_TARGET: Final[Decoders] = {"group": str, "routing": str, "key": str, "address": str, "end": str}
_ORDER: Final[Decoders] = {
    "command": str,
    "event": str,
    "timeout": _span,
    "retry": _policy,
    "job": _job,
    "queue_timeout": _span,
}
_STEP: Final[Decoders] = {**_ORDER, "name": str, "state": str, "then": str, "undo": _undo, "on_failure": str}
_SAGA: Final[Decoders] = {"name": str, "version": int, "steps": _steps, "immediate": dict, "timeout": _span}


def _decoded(value: Mapping[str, Any], decoders: Decoders) -> dict[str, Any]:
    unknown = sorted(set(value) - set(decoders))
    if unknown:  # an option of a newer release: without it, it would be another saga
        raise ValueError(f"it has {', '.join(unknown)}, which this release does not know")
    return {name: decoders[name](part) for name, part in value.items()}


def _without_texts(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_texts(part) for name, part in value.items() if name not in _READERS_ONLY}
    return [_without_texts(part) for part in value] if isinstance(value, list | tuple) else value


def _named(body: Any) -> Any:
    """`body` with its steps keyed by name instead of position; `order` keeps the places."""
    steps = {step["name"]: step for step in body["steps"]}
    return {**body, "steps": steps, "order": [step["name"] for step in body["steps"]]}


def _differences(old: Any, new: Any, place: str) -> list[str]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        names = [*old, *(name for name in new if name not in old)]
        found = [_differences(old.get(name), new.get(name), f"{place}.{name}".lstrip(".")) for name in names]
        return [sentence for sentences in found for sentence in sentences]
    if old == new:
        return []
    if old is None:
        return [f"{place} was added"]
    if new is None:
        return [f"{place} was removed"]
    return [f"{place} was {_short(old)}, is {_short(new)}"]


def _short(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True)[:60]
