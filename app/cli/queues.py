"""Are the queues of the known sagas there, does anybody read them, and what lies among the dead letters?"""

from __future__ import annotations

from app.broker.port import Broker
from app.broker.topology import UNROUTED, dead_letters_of
from app.cli.finding import OK, WARN, Finding
from sagas.engine.catalog import Catalog

_START_NODE = "orchestrix serve"


async def queues(broker: Broker, catalog: Catalog) -> list[Finding]:
    """A warning for each thing that needs a look, or one good word. Raises `Unavailable`."""
    found: list[Finding] = []
    for name in catalog.commands:
        found += await _work(broker, name, f"orchestrix worker -q {name}")
    for name in catalog.events:
        found += await _work(broker, name, "orchestrix serve --roles api,orchestrator")
    found += await _left_over(broker, UNROUTED, "messages that no queue wanted: look for a mistyped event name")
    return found or [Finding(OK, "queues", f"{len(catalog.commands) + len(catalog.events)} queues, all are read")]


async def _work(broker: Broker, name: str, reader: str) -> list[Finding]:
    count = await broker.message_count(name)
    if count is None:
        return [Finding(WARN, "queues", f"{name} does not exist yet", _START_NODE)]
    messages, consumers = count
    unread = [] if consumers else [Finding(WARN, "queues", f"{name}: {messages} ready, nobody reads it", reader)]
    return unread + await _left_over(broker, dead_letters_of(name), "dead letters: their header x-reason says why")


async def _left_over(broker: Broker, name: str, meaning: str) -> list[Finding]:
    count = await broker.message_count(name)
    if count is None:
        return [Finding(WARN, "queues", f"{name} does not exist yet", _START_NODE)]
    return [Finding(WARN, "queues", f"{name}: {count[0]} {meaning}")] if count[0] else []
