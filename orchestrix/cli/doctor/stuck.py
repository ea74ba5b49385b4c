"""Stuck checks: which sagas do not continue by themselves, over all of them, as the API reports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from orchestrix.cli.api_client import ApiClient
from orchestrix.cli.doctor.result import WARN, CheckResult
from orchestrix.cli.instance_names import APP, base
from orchestrix.errors import NotFound, OrchestrixError

_LOOKED_AT: Final = 50
_TEXTS: Final = ("sentence", "why", "reason", "blocker")


def stuck(api: ApiClient) -> list[CheckResult]:
    """A warning for each saga with instances that wait for a person, the broker or workers, or are overdue.

    Raises what the API refuses.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for one in _all(api):
        found.setdefault(str(one.get("saga") or APP), []).append(one)
    return [_describe(api, saga, instances) for saga, instances in sorted(found.items())]


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


def _describe(api: ApiClient, saga: str, instances: list[dict[str, Any]]) -> CheckResult:
    first, many = instances[0], len(instances)
    name, id = first.get("key") or first.get("appName"), first.get("id")
    count = f"{many}{' or more' if many == _LOOKED_AT else ''} instance{'s' * (many != 1)}"
    why = next((str(first[text]) for text in _TEXTS[:3] if first.get(text)), None) or _why(api, saga, id)
    noun = "apps why" if saga == APP else f"sagas why {saga}"
    said = f"saga {saga}: {count}, as {id} {name!r} ({first.get('state')}){f': {why}' if why else ''}"
    return CheckResult(WARN, "stuck", said, f"orchestrix {noun} {id}")


def _why(api: ApiClient, saga: str, id: Any) -> str | None:
    try:
        found = api.get(f"{base(saga)}/{id}/why", {})
    except OrchestrixError:
        return None
    return found.get("sentence") if isinstance(found, dict) else None
