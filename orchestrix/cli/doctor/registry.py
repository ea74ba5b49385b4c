"""Registry checks: apps with nearly as many executors as they may have, and executors whose app has no group."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestrix.cli.doctor.result import WARN, CheckResult
from orchestrix.quantities import counted

if TYPE_CHECKING:
    from orchestrix.persistence.engine import Database


async def registry(database: Database) -> list[CheckResult]:
    """A warning for each such app. Raises `Unavailable`."""
    from orchestrix.persistence.registry import groups, registrations

    async with database.read() as connection:
        counts = await registrations.counts(connection)
        apps = {group.app_name for group in await groups.listed(connection)}
    return [found for app, count in sorted(counts.items()) for found in _of_app(app, count, app in apps)]


def _of_app(app: str, count: int, has_group: bool) -> Iterator[CheckResult]:
    from orchestrix.registry.reaper import NEARLY_FULL
    from orchestrix.registry.registrar import GROUP_LIMIT

    if count >= NEARLY_FULL:
        detail = f"app {app}: {count:,} executors, and more than {GROUP_LIMIT:,} are refused"
        yield CheckResult(WARN, "registry", detail, "stop some, or divide them among several apps")
    if not has_group:
        detail = f"app {app}: {counted(count, 'executor')} registered, but no group, so that no job is routed there"
        yield CheckResult(WARN, "registry", detail, f"orchestrix registry set {shlex.quote(app)} --auto")
