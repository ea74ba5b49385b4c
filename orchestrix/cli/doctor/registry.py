"""Registry checks: apps with nearly as many executors as they may have, executors whose app has no group, addresses
that no node calls.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestrix.cli.doctor.result import FAIL, WARN, CheckResult
from orchestrix.quantities import counted

if TYPE_CHECKING:
    from orchestrix.config.registry import RegistrySettings
    from orchestrix.domain.registry.addresses import AllowList
    from orchestrix.persistence.engine import Database


async def registry(database: Database) -> list[CheckResult]:
    """A warning for each such app. Raises `Unavailable`."""
    from orchestrix.persistence.registry import groups, registrations

    async with database.read() as connection:
        counts = await registrations.counts(connection)
        apps = {group.app_name for group in await groups.listed(connection)}
    return [found for app, count in sorted(counts.items()) for found in _of_app(app, count, app in apps)]


async def calls(database: Database, settings: RegistrySettings, *, on_this_machine: bool) -> list[CheckResult]:
    """A warning for each group with an address that no node may call, as far as these settings and it alone say so.

    Without an allow list a development server calls what is `on_this_machine`. Raises `Unavailable`.
    """
    from orchestrix.domain.registry.addresses import AllowList
    from orchestrix.persistence.registry import groups

    unset = AllowList.loopback() if on_this_machine else AllowList()
    try:
        allow = unset if settings.allow is None else AllowList.parse(settings.allow)
    except ValueError as wrong:
        return [CheckResult(FAIL, "registry", f"ORCHESTRIX_REGISTRY__ALLOW: {wrong}")]
    secrets = settings.secrets()
    async with database.read() as connection:
        known = await groups.listed(connection)
    found = []
    for group in known:
        with_token = group.app_name in secrets or "" in secrets
        whys = [why for one in group.addresses if (why := _not_called(one, allow, with_token)) is not None]
        if whys:
            detail = (
                f"app {group.app_name}: {len(whys):,} of {len(group.addresses):,} addresses are not called: {whys[0]}"
            )
            found.append(CheckResult(WARN, "registry", detail))
    return found


def _not_called(text: str, allow: AllowList, with_token: bool) -> str | None:
    """Why the address is not called, where that can be said without a name service."""
    from ipaddress import ip_address

    from orchestrix.domain.registry.addresses import SETTING, judge, parse_address

    address = parse_address(text)
    try:
        ip = ip_address(address.host)
    except ValueError:
        unset = f"{SETTING} is not set, so no executor is. Set it to the networks or names of your executors"
        return None if allow.networks or allow.hosts else unset
    if (why := judge(address, [ip], allow, ())) is not None:
        return why
    if not with_token and not ip.is_loopback:
        return f"{text} is not on this machine, and without ORCHESTRIX_REGISTRY__TOKEN no other is called"
    return None


def _of_app(app: str, count: int, has_group: bool) -> Iterator[CheckResult]:
    from orchestrix.registry.reaper import NEARLY_FULL
    from orchestrix.registry.registrar import GROUP_LIMIT

    if count >= NEARLY_FULL:
        detail = f"app {app}: {count:,} executors, and more than {GROUP_LIMIT:,} are refused"
        yield CheckResult(WARN, "registry", detail, "stop some, or divide them among several apps")
    if not has_group:
        detail = f"app {app}: {counted(count, 'executor')} registered, but no group, so that no job is routed there"
        yield CheckResult(WARN, "registry", detail, f"orchestrix registry set {shlex.quote(app)} --auto")
