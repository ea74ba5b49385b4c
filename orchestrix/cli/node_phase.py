"""Node phase: whether a node is only starting or stopping, so that what it lacks is no fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from orchestrix.cli.api_client import ApiClient
from orchestrix.errors import OrchestrixError

_PHASES: Final = {"Start": "starting", "Stop": "stopping"}
"""The components of `/health/ready` that show it, the last one last."""


def phase_of(health: Any) -> str | None:
    """`starting` or `stopping`, by the answer of `/health/ready`; None for a node that is neither."""
    checks = health.get("checks", []) if isinstance(health, Mapping) else []
    bad = {check.get("component") for check in checks if isinstance(check, Mapping) and not check.get("isHealthy")}
    found = [phase for component, phase in _PHASES.items() if component in bad]
    return found[-1] if found else None


def phase(api: ApiClient) -> str | None:
    """The same, asked of the node; None where it does not say."""
    try:
        return phase_of(api.get("/health/ready", also=(503,)))
    except OrchestrixError:
        return None
