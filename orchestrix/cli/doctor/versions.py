"""Version checks: what live instances need that this code has not, and events that are held."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrix.broker.port import Broker
from orchestrix.cli.doctor.result import WARN, CheckResult
from orchestrix.saga.catalog import Catalog

if TYPE_CHECKING:
    from orchestrix.persistence.engine import Database


async def versions(database: Database, broker: Broker, catalog: Catalog) -> list[CheckResult]:
    """A warning for each version, command or held event that needs attention. Raises `Unavailable`."""
    from orchestrix.domain.version_check import NOT_STORED, OTHER_DEFINITION, UNHANDLED, WITHOUT_CODE, check_versions
    from orchestrix.persistence.sagas import definitions, held_events
    from orchestrix.persistence.sagas.definition_store import DefinitionStore, definition_of

    code = [definition_of(saga) for saga in catalog.code]
    handled = catalog.commands
    reader = DefinitionStore(database, catalog)
    await reader.read_all()
    async with database.read() as connection:
        rows = await definitions.all_of(connection)
        live = await definitions.live_states(connection)
        held = await held_events.counts(connection)
    known = check_versions(code, [one.definition for one in rows], live, handled)
    found = [
        CheckResult(WARN, "versions", f"saga {one.saga} version {one.version}, {one.count} live: {one.detail}")
        for one in known
        if one.kind in (NOT_STORED, OTHER_DEFINITION, WITHOUT_CODE)
    ]
    for (saga, version), why in reader.unreadable().items():
        found.append(CheckResult(WARN, "versions", f"saga {saga} version {version} cannot be read here: {why}"))
    for command in sorted({one.subject for one in known if one.kind == UNHANDLED}):
        found += await _unread(broker, command)
    for saga, count in held.items():
        waits = f"{count} of saga {saga} wait for a node that knows the version of their instance"
        found.append(CheckResult(WARN, "held events", waits))
    return found


async def _unread(broker: Broker, command: str) -> list[CheckResult]:
    count = await broker.message_count(command)
    if count is not None and count[1]:
        return []
    detail = f"{command} may still be sent by live instances of an earlier version, and nobody reads its queue"
    return [CheckResult(WARN, "queues", detail, f"orchestrix worker -q {command}")]
