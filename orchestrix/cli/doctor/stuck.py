"""Stuck checks: which sagas do not continue by themselves, over all of them, as the API reports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from orchestrix.cli.api_client import ApiClient
from orchestrix.cli.doctor.result import FAIL, WARN, CheckResult
from orchestrix.cli.instance_names import APP, base, command_of
from orchestrix.cli.saga_watch import UNDO_FAILED
from orchestrix.errors import NotFound, OrchestrixError

_LOOKED_AT: Final = 50
_IN_DEATHS: Final = "workers_died"
"""What is reported by queue, with the number of workers."""
_TEXTS: Final = ("sentence", "why", "reason", "blocker")


def stuck(api: ApiClient) -> list[CheckResult]:
    """A failure for each step whose undo has failed; a warning for each cause, by saga and step, for which instances
    wait for a person, the broker or workers, or are overdue.

    Raises what the API refuses.
    """
    causes: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    looked_at = _all(api)
    for one in looked_at:
        if one.get("state") != UNDO_FAILED and one.get("blocker") != _IN_DEATHS:
            causes.setdefault(_cause(one), []).append(one)
    more = len(looked_at) == _LOOKED_AT
    warnings = [_describe(api, WARN, cause[0], found, more) for cause, found in sorted(causes.items())]
    return [*_failed_undos(api), *warnings]


def _failed_undos(api: ApiClient) -> Iterator[CheckResult]:
    """Asked for by their state: newer instances that are stuck would hide them."""
    for name in [str(saga.get("saga")) for saga in _items(api.get("/sagas", {})) if _has_failed_undo(saga)]:
        found = _items(api.get(base(name), {"state": UNDO_FAILED, "limit": _LOOKED_AT}))
        causes: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for one in found:
            causes.setdefault(_cause({**one, "saga": name}), []).append(one)
        for instances in causes.values():
            yield _describe(api, FAIL, name, instances, len(found) == _LOOKED_AT)


def _has_failed_undo(saga: dict[str, Any]) -> bool:
    return any(version.get("live", {}).get(UNDO_FAILED) for version in saga.get("versions") or [])


def _cause(one: dict[str, Any]) -> tuple[str, ...]:
    return str(one.get("saga") or APP), str(one.get("blocker") or ""), str(one.get("step") or "")


def _all(api: ApiClient) -> list[dict[str, Any]]:
    try:
        return _items(api.get("/stuck", {"limit": _LOOKED_AT}))
    except NotFound:  # an older node
        return list(_by_saga(api))


def _by_saga(api: ApiClient) -> Iterator[dict[str, Any]]:
    for saga in _items(api.get("/sagas", {})):
        name = str(saga.get("saga"))
        for one in _items(api.get(base(name), {"stuck": "true", "limit": _LOOKED_AT})):
            yield {**one, "saga": name}


def _items(page: Any) -> list[dict[str, Any]]:
    items = page.get("items") if isinstance(page, dict) else None
    return [one for one in items if isinstance(one, dict)] if isinstance(items, list) else []


def _describe(api: ApiClient, status: str, saga: str, instances: list[dict[str, Any]], more: bool) -> CheckResult:
    first, many = instances[0], len(instances)
    name, id = first.get("key") or first.get("appName"), first.get("id")
    count = f"{many}{' or more' if more else ''} instance{'s' * (many != 1)}"
    why = next((str(first[text]) for text in _TEXTS[:3] if first.get(text)), None) or _why(api, saga, id)
    said = f"saga {saga}: {count}, as {id} {name!r} ({first.get('state')}){f': {why}' if why else ''}"
    return CheckResult(status, "undo" if status == FAIL else "stuck", said, command_of(saga, "why", id))


def _why(api: ApiClient, saga: str, id: Any) -> str | None:
    try:
        found = api.get(f"{base(saga)}/{id}/why", {})
    except OrchestrixError:
        return None
    return found.get("sentence") if isinstance(found, dict) else None
