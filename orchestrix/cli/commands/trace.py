"""Trace command: what happened to an instance and when, over all processes that worked on it."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any, Final

from orchestrix.cli import exit_codes, output
from orchestrix.cli.api_client import ApiClient
from orchestrix.cli.api_request import api_of
from orchestrix.cli.display.waterfall import Trace, waterfall
from orchestrix.cli.instance_names import base, on_instance
from orchestrix.errors import NotFound
from orchestrix.quantities import counted
from orchestrix.telemetry.conventions import LINK_BATCH

MAX_TRACES: Final = 100
"""How many traces are looked at."""
MAX_SPANS: Final = 200
"""How many spans are shown without `--all`."""


def trace(arguments: argparse.Namespace) -> int:
    """`trace`: a waterfall of all traces of an instance. Raises `NotFound` where there are none."""
    api = api_of(arguments)
    instance = on_instance(arguments, api, "{base}/{id}", api.document)
    changes = api.all_items(f"{base(arguments.saga)}/{instance.get('id')}/history")
    ids = [instance.get("traceId"), *(one.get("traceId") for one in changes)]
    name = instance.get("appName") or instance.get("key")
    found, missing = _collected(api, ids, f"{arguments.saga} {instance.get('id')}")
    if arguments.output == "json":
        traces = [{"traceId": one.id, "spans": one.spans} for one in found]
        output.print_json({"saga": arguments.saga, "id": instance.get("id"), "traces": traces, "missing": [*missing]})
        return exit_codes.OK
    print(output.visible(f"{arguments.saga} {instance.get('id')}  {name}  {instance.get('state')}"))
    columns = None if arguments.output == "wide" else output.terminal_columns()
    print("\n".join(waterfall(found, columns, None if arguments.all else MAX_SPANS)))
    for text in dict.fromkeys(missing.values()):
        count = sum(one == text for one in missing.values())
        exit_codes.warn(f"{counted(count, 'trace')} of it cannot be shown: {text}", "note")
    return exit_codes.OK


def _collected(api: ApiClient, ids: Iterable[str | None], what: str) -> tuple[list[Trace], dict[str, str]]:
    """The traces of these ids, and those that they continue; of the ones that cannot be had, why not.

    Raises `NotFound` if none can.
    """
    waiting = [one for one in dict.fromkeys(ids) if one]
    if not waiting:
        raise NotFound(
            f"no trace is known of {what}: none was made when it began. Its processes need orchestrix-sagas[otel] "
            "and no OTEL_SDK_DISABLED; `orchestrix dev` keeps recent traces, others send them to "
            "OTEL_EXPORTER_OTLP_ENDPOINT"
        )
    found: dict[str, Trace] = {}
    missing: dict[str, str] = {}
    while waiting:
        if len(found) + len(missing) >= MAX_TRACES:
            missing |= dict.fromkeys(waiting, f"only the first {MAX_TRACES} are looked at")
            break
        wanted = waiting.pop(0)
        try:
            found[wanted] = Trace(wanted, api.document(f"/traces/{wanted}")["spans"])
        except NotFound as none:
            missing[wanted] = str(none).replace(wanted, f"{wanted[:8]}…")
            continue
        waiting += [one for one in _linked(found[wanted]) if one not in {*found, *missing, *waiting}]
    if not found:
        first = next(iter(missing))
        raise NotFound(missing[first].replace(f"{first[:8]}…", first))
    return list(found.values()), missing


def _linked(trace: Trace) -> list[str]:
    """The other traces that its spans link to; not what was only committed together."""
    links: list[dict[str, Any]] = [link for span in trace.spans for link in span.get("links") or ()]
    return list(dict.fromkeys(str(link["traceId"]) for link in links if link.get("kind") != LINK_BATCH))
