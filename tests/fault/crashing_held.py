"""Crash points of held events and of begins: a node that applies what nodes of other code have held, and one that is
told that work has begun."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import pika

from orchestrix.engine.held_events import UNKNOWN_VERSION
from orchestrix.persistence.engine import Database
from orchestrix.persistence.sagas import held_events
from orchestrix.persistence.sagas.held_events import HeldEvent
from orchestrix.saga.definition import STEP_STARTED
from tests.fault.crashing import APPS, At, Rig, create, died
from tests.invariants import Row
from tests.support import eventually
from tests.taps import EVENTS, channel, ready

CREATED: Final = "evt.gitRepoCreated"


async def held_is_applied(rig: Rig, at: At) -> None:
    """While it applies the first event of every app: those whose commit is done have moved, the others are held."""
    node, client = await rig.ready_node()
    async with client:
        assert await create(client, rig.names, at_once=10) == list(rig.names)
    await rig.sent()
    node.kill9()
    worker = rig.worker("-q", "cmd.createGitRepo")
    await eventually(lambda: ready(rig.broker_url, [CREATED])[CREATED] == APPS, deadline=20, every=0.05)
    worker.kill9()
    await _hold(rig, await asyncio.to_thread(_taken, rig.broker_url))
    doomed, _ = rig.armed_node(at)
    await died(doomed, at)
    names = ", ".join(f"'{name}'" for name in rig.names)
    ((moved,),) = await rig.sql(f"SELECT count(*) FROM apps WHERE state <> 'APP_INITIATED' AND app_name IN ({names})")
    ((left,),) = await rig.sql("SELECT count(*) FROM held_events")
    assert moved + left == APPS, "an event is held or applied"
    assert moved == at.passage - (at.point == "held.before_commit")
    await rig.ready_node()
    rig.worker()


async def begin_is_told(rig: Rig, at: At) -> None:
    """While it is told of every app that the work on its command has begun."""
    node, client = await rig.ready_node(at)
    async with client:
        assert await create(client, rig.names, at_once=10) == list(rig.names)
    await rig.sent()
    apps = [app for app in (await rig.ledger()).apps if app.name in rig.names]
    await asyncio.to_thread(_tell, rig.broker_url, apps)
    await died(node, at)
    ((begun,),) = await rig.sql("SELECT count(*) FROM apps WHERE state = 'APP_INITIATED' AND begun_id = command_id")
    assert begun > 0, "it is written before it is acknowledged"
    await rig.ready_node()
    rig.worker()


def _tell(broker_url: str, apps: Sequence[Row]) -> None:
    with channel(broker_url) as ours:
        ours.confirm_delivery()
        for app in apps:
            told = {"appId": app.id, "saga": "app", "correlationId": app.changes[0].correlation_id, "beganMsAgo": 10}
            body = json.dumps({**told, "causationId": app.owed[-1]}).encode()
            properties = pika.BasicProperties(message_id=f"begin-{app.id}", delivery_mode=2)  # type: ignore[no-untyped-call]
            ours.basic_publish(EVENTS, STEP_STARTED, body, properties)


def _taken(broker_url: str) -> list[tuple[Any, bytes]]:
    """The properties and bodies of the events, which are in no queue from then on."""
    with channel(broker_url) as ours:
        got = [ours.basic_get(CREATED, auto_ack=True) for _ in range(APPS)]
    return [(properties, body) for _, properties, body in got]


async def _hold(rig: Rig, events: list[tuple[Any, bytes]]) -> None:
    """Writes what a node writes that does not know the version of the apps."""
    apps = {app.changes[0].correlation_id: app.id for app in (await rig.ledger()).apps}
    rows = [
        HeldEvent(
            message_id=f"app:{apps[properties.correlation_id]}:{properties.message_id}",
            saga="app",
            instance_id=apps[properties.correlation_id],
            queue=CREATED,
            body=body,
            headers={"messageId": properties.message_id, "correlationId": properties.correlation_id},
            reason=UNKNOWN_VERSION,
            held_at=datetime.now(UTC),
        )
        for properties, body in events
    ]
    database = Database(rig.database_url)
    try:
        async with database.begin() as tx:
            await held_events.add(tx, rows)
    finally:
        await database.close()
