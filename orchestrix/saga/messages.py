"""Messages: commands and events as they are sent, and which bodies are rejected."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from orchestrix.saga.trace_context import trace_id
from orchestrix.saga.validation.json_syntax import stopped

from .definition import STEP_FAILED, Job
from .errors import OrchestrixError

MAX_BODY: Final = 1024 * 1024
MAX_DATA: Final = 64 * 1024
MAX_NESTING: Final = 64
MAX_ID: Final = 2**53
MAX_EVENT_ID: Final = 255
MAX_WORKER: Final = 200


class UnreadableMessage(OrchestrixError):
    """A body that cannot be read as an event or a command. Its text is the reason in the dead letter."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command to a worker. `id` stays the same over every copy; `idempotency_key` over every attempt.

    `effect_key` is what the step's effects are keyed by, the same for the step and for its compensation.
    `undoes_attempt` is set for a compensation alone: the highest attempt of the step that may have been sent before.
    The handler stores it, and refuses that attempt, or one before it, that arrives late. Where a `job` is the step, no
    message is sent: the job is inserted with the same id, and `payload`. `definition_version` is that of the saga by
    which the instance runs; None in a command of a release that did not send it.
    """

    id: str
    type: str
    saga: str
    app_id: int
    app_name: str
    correlation_id: str
    expected_state: str
    step: str
    attempt: int
    timeout_ms: int
    idempotency_key: str
    data: Mapping[str, Any]
    undoes_attempt: int | None = None
    job: Job | None = None
    event: str = ""
    effect_key: str = ""
    definition_version: int | None = None

    @property
    def payload(self) -> dict[str, Any]:
        """The job's payload; `event` is the event of its success."""
        undoes = {} if self.undoes_attempt is None else {"undoesAttempt": self.undoes_attempt}
        return {
            "saga": self.saga,
            "appId": self.app_id,
            "appName": self.app_name,
            "step": self.step,
            "attempt": self.attempt,
            "idempotencyKey": self.idempotency_key,
            "effectKey": self.effect_key,
            **undoes,
            "event": self.event,
            "data": dict(self.data),
        }

    def body(self) -> bytes:
        """The JSON that is sent, in UTF-8."""
        undoes = {} if self.undoes_attempt is None else {"undoesAttempt": self.undoes_attempt}
        version = {} if self.definition_version is None else {"definitionVersion": self.definition_version}
        return dump(
            {
                "id": self.id,
                "type": self.type,
                "saga": self.saga,
                "appId": self.app_id,
                "appName": self.app_name,
                "correlationId": self.correlation_id,
                "expectedState": self.expected_state,
                "step": self.step,
                "attempt": self.attempt,
                "timeoutMs": self.timeout_ms,
                "idempotencyKey": self.idempotency_key,
                "effectKey": self.effect_key,
                **version,
                **undoes,
                "data": self.data,
            }
        )


@dataclass(frozen=True, slots=True)
class StepError:
    """Why a step failed. `retry_after_ms` is the delay in milliseconds that the worker requests.

    `unsure` says that the step may have had effects all the same, `hold` that the step must wait for a person.
    """

    type: str
    message: str
    retryable: bool
    retry_after_ms: int | None = None
    unsure: bool = False
    hold: bool = False


@dataclass(frozen=True, slots=True)
class StepStarted:
    """A worker's report that it has started a command, so many milliseconds before it reported."""

    app_id: int
    correlation_id: str
    causation_id: str
    saga: str | None
    began_ms_ago: int


@dataclass(frozen=True, slots=True)
class Event:
    """A worker's report. `causation_id` is the command's id; `error` is set for `evt.stepFailed` alone; `trace_id` is
    that of the trace which its headers name. `began_ms_ago` is how long its work took, `worker` who did it, where it
    says so."""

    type: str
    app_id: int
    correlation_id: str
    saga: str | None
    id: str | None
    causation_id: str | None
    data: Mapping[str, Any]
    error: StepError | None = None
    trace_id: str | None = None
    began_ms_ago: int | None = None
    worker: str | None = None


def compact(value: object) -> str:
    """Compact JSON; raises `ValueError` for NaN and infinity."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def dump(value: object) -> bytes:
    """Compact JSON in UTF-8; raises `ValueError` for NaN, infinity and lone surrogates."""
    return compact(value).encode()


def storable(text: str) -> bool:
    """Whether every database can store `text`: no NUL, no lone surrogate."""
    return "\0" not in text and (text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text))


def load(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`.

    Raises `UnreadableMessage` for anything that JSON readers and databases do not all treat alike: other encodings than
    UTF-8, no object, NaN and infinity, NUL, lone surrogates, a key twice, more than 64 levels, over 1 MiB.
    """
    if len(body) > MAX_BODY:
        raise UnreadableMessage(f"too-large: {len(body)} bytes, at most {MAX_BODY}")
    try:
        text = body.decode()
        value = (json.loads if text.startswith("\ufeff") else _STRICT.decode)(text)  # `loads` names that mark
    except UnicodeDecodeError:
        raise UnreadableMessage("not-utf8") from None
    except RecursionError:
        raise UnreadableMessage("too-deep") from None
    except ValueError as error:
        raise UnreadableMessage(f"not-json: {_json_error_text(_plain(error))}"[:200]) from None
    if not isinstance(value, dict):
        raise UnreadableMessage("not-an-object")
    _check_text(text, value)
    return value


def event(
    routing_key: str,
    body: bytes,
    correlation_id: str | None = None,
    message_id: str | None = None,
    traceparent: object = None,
) -> Event:
    """The event in `body`; the routing key names its type. The properties replace what the body leaves out.
    `traceparent` is the header of that name, whatever it holds. Raises `UnreadableMessage`.
    """
    fields = load(body)
    return Event(
        type=routing_key,
        app_id=_app_id(fields),
        correlation_id=_text(fields, "correlationId") or correlation_id or _missing("correlationId"),
        saga=_text(fields, "saga"),
        id=_event_id(fields, message_id),
        causation_id=_text(fields, "causationId"),
        data=_object(fields, "data"),
        error=_error(fields) if routing_key == STEP_FAILED else None,
        trace_id=trace_id(traceparent),
        began_ms_ago=_duration(fields.get("beganMsAgo")),
        worker=_name(fields.get("worker")),
    )


def started(body: bytes, correlation_id: str | None = None) -> StepStarted:
    """The report in `body`, where the property replaces a missing correlation id; raises `UnreadableMessage`."""
    fields = load(body)
    return StepStarted(
        app_id=_app_id(fields),
        correlation_id=_text(fields, "correlationId") or correlation_id or _missing("correlationId"),
        causation_id=_required(fields, "causationId"),
        saga=_text(fields, "saga"),
        began_ms_ago=_ago(fields),
    )


def command(body: bytes) -> Command:
    """The command in `body`; raises `UnreadableMessage`."""
    fields = load(body)
    return Command(
        id=_required(fields, "id"),
        type=_required(fields, "type"),
        saga=_required(fields, "saga"),
        app_id=_app_id(fields),
        app_name=_required(fields, "appName"),
        correlation_id=_required(fields, "correlationId"),
        expected_state=_required(fields, "expectedState"),
        step=_required(fields, "step"),
        attempt=_number(fields, "attempt"),
        timeout_ms=_number(fields, "timeoutMs"),
        idempotency_key=_required(fields, "idempotencyKey"),
        data=_object(fields, "data"),
        undoes_attempt=_number(fields, "undoesAttempt") if "undoesAttempt" in fields else None,
        effect_key=_text(fields, "effectKey") or "",
        definition_version=_number(fields, "definitionVersion") if "definitionVersion" in fields else None,
    )


def explained(refused: BaseException) -> str:
    """What is wrong with a value, for people: from the error that `dump` or `load` raised."""
    if isinstance(refused, UnreadableMessage):
        kind, _, text = str(refused).partition(": ")
        return _SAID.get(kind) or text or kind
    if isinstance(refused, UnicodeEncodeError):
        return _SAID["nul-or-lone-surrogate"]
    return _SAID["too-deep"] if isinstance(refused, RecursionError) else _json_error_text(_plain(refused))


_SAID: Final = {
    "nul-or-lone-surrogate": "a string contains a NUL character or a lone surrogate",
    "too-deep": f"nested too deeply: at most {MAX_NESTING} levels of objects and arrays are allowed",
    "not-utf8": "not UTF-8",
    "not-an-object": "not an object",
}


def _json_error_text(text: str) -> str:
    """Our own text for the errors of Python's JSON parser."""
    return stopped(text) or text


def _plain(error: BaseException) -> str:
    if "set_int_max_str_digits" in str(error):
        return f"a number has more than {sys.get_int_max_str_digits()} digits"
    return str(error)


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits[:40]} is out of range")
    return value


def _unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key was given more than once in one object")
    return fields


_STRICT: Final = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite, object_pairs_hook=_unique_fields)


def _check_text(text: str, value: object) -> None:
    if text.count("[") + text.count("{") > MAX_NESTING and _depth(value) > MAX_NESTING:
        raise UnreadableMessage("too-deep")
    lowered = text.lower()
    if ("\\u0000" in lowered or "\\ud" in lowered) and not _all_storable(value):
        raise UnreadableMessage("nul-or-lone-surrogate")


def _depth(value: object) -> int:
    level, depth = _containers([value]), 0
    while level and depth <= MAX_NESTING:
        level = _containers(child for node in level for child in (node.values() if isinstance(node, dict) else node))
        depth += 1
    return depth


def _containers(values: Iterable[object]) -> list[dict[str, Any] | list[Any]]:
    return [value for value in values if isinstance(value, dict | list)]


def _all_storable(value: object) -> bool:
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return all(storable(key) and _all_storable(item) for key, item in value.items())
    return not isinstance(value, list) or all(map(_all_storable, value))


def _app_id(fields: Mapping[str, Any]) -> int:
    value = fields.get("appId")
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 16:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < MAX_ID:
        raise UnreadableMessage("appId: must be a whole number from 1 to 2^53 - 1")
    return value


def _event_id(fields: Mapping[str, Any], message_id: str | None) -> str | None:
    """The id that history will quote. A property, unlike a body, has not been validated yet."""
    found = _text(fields, "id")
    found = message_id or found
    if found is not None and (len(found) > MAX_EVENT_ID or not storable(found)):
        raise UnreadableMessage(f"id: must be at most {MAX_EVENT_ID} characters, none of them NUL")
    return found


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise UnreadableMessage(f"{name}: must be a string")
    return value or None


def _required(fields: Mapping[str, Any], name: str) -> str:
    return _text(fields, name) or _missing(name)


def _missing(name: str) -> str:
    raise UnreadableMessage(f"{name}: is missing")


def _number(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < MAX_ID:
        raise UnreadableMessage(f"{name}: must be a whole number above 0")
    return value


def _ago(fields: Mapping[str, Any]) -> int:
    """Milliseconds since the start; a start in the future, by another clock, counts as now."""
    ago = _duration(fields.get("beganMsAgo", 0))
    if ago is None:
        raise UnreadableMessage("beganMsAgo: must be a number of milliseconds")
    return ago


def _duration(value: object) -> int | None:
    """Milliseconds; None for what is no number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return int(max(0, min(value, MAX_ID)))


def _name(value: object) -> str | None:
    return value[:MAX_WORKER] if isinstance(value, str) and value and storable(value) else None


def _object(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = fields.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UnreadableMessage(f"{name}: must be an object")
    return value


def _error(fields: Mapping[str, Any]) -> StepError:
    error = _object(fields, "error")
    retryable = error.get("retryable", True)
    after = error.get("retryAfterMs")
    if not isinstance(retryable, bool):
        raise UnreadableMessage("error.retryable: must be true or false")
    if after is not None and (not isinstance(after, int) or isinstance(after, bool) or not 0 <= after < MAX_ID):
        raise UnreadableMessage("error.retryAfterMs: must be a whole number of milliseconds")
    unsure, hold = error.get("unsure") is True, error.get("hold") is True
    kind, message = _text(error, "type") or ("Hold" if hold else "Error"), _text(error, "message") or ""
    return StepError(kind, message, retryable and not hold, after, unsure, hold)
