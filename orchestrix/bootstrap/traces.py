"""Traces of a process: begins and ends the export of its spans, and of its metrics."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from orchestrix.bootstrap.context import API
from orchestrix.config.settings import Settings
from orchestrix.lifecycle import stop_stage
from orchestrix.telemetry import exporters, tracing

API_SERVICE: Final = "orchestrix-api"
COORDINATOR_SERVICE: Final = "orchestrix-coordinator"
WORKER_SERVICE: Final = "orchestrix-worker"
DEV_SERVICE: Final = "orchestrix-dev"
_MARGIN_S: Final = 1.0


def node_service(roles: frozenset[str]) -> str:
    """The `service.name` of a node: one that only answers requests has its own."""
    return API_SERVICE if roles == {API} else COORDINATOR_SERVICE


def export_traces(settings: Settings, service: str, instance: str, local: Path | None = None) -> None:
    """Spans are made from now on, if there is anywhere to send them; `local` is the file of the local store. Metrics
    are sent where the environment says. To be called when the user's modules are imported.
    """
    exporters.setup(service, instance, settings.traces.split_after, local)
    exporters.setup_metrics(service, instance)


async def stop_traces() -> None:
    """Sends what has ended, and the metrics, for 2 s at most; from then on no spans are made."""
    await stop_stage("exporting the last spans and metrics", _stop(), exporters.STOP_TIMEOUT_S + _MARGIN_S)


async def _stop() -> None:
    stops = (tracing.stop, exporters.stop_metrics)
    await asyncio.gather(*(asyncio.to_thread(stop, exporters.STOP_TIMEOUT_S) for stop in stops))
