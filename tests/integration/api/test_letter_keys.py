"""Is what a person does with dead letters, or sends again, done once, however often the request comes?"""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from orchestrix.broker.topology import saga_topology
from orchestrix.engine.redispatch import RedispatchService
from orchestrix.errors import OutcomeUnknown
from orchestrix.outbox.relay import OutboxRelay
from orchestrix.persistence import outbox
from orchestrix.persistence.engine import Transaction
from tests.fakes.broker import FakeBroker

from .answers import problem
from .test_control_keys import DEEDS, KEY, ONE, keys_stored
from .test_dead_letters import REASON, letter, owed, put
from .world import CATALOG, World


@pytest.fixture
def real(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """With what really sends again behind it."""
    relay = OutboxRelay(world.database, FakeBroker(), saga_topology(CATALOG), node="n", lease=5.0, batch=10)
    work = RedispatchService(world.database, relay, CATALOG)
    monkeypatch.setattr(world.redispatcher, "redispatch", work.redispatch)
    monkeypatch.setattr(world.redispatcher, "redispatch_once", work.redispatch_once)
    monkeypatch.setattr(world.redispatcher, "count", work.count)
    return world


async def audited(world: World) -> list[str]:
    """The verbs that the audit tells."""
    async with world.database.read() as connection:
        return [row[0] for row in await connection.execute(text("SELECT verb FROM audit ORDER BY id"))]


@pytest.mark.parametrize(("method", "path", "body", "verb"), DEEDS)
async def test_a_repeated_key_gives_the_stored_answer(
    real: World, method: str, path: str, body: dict[str, Any] | None, verb: str
) -> None:
    await real.started()
    await put(real, letter(1))
    where = path.format(id=letter(1).id)
    first = await real.client.request(method, where, json=body, headers=KEY)
    assert (first.status_code, "idempotent-replayed" in first.headers) == (200, False), first.text
    await put(real, letter(2))
    again = await real.client.request(method, where, json=body, headers=KEY)
    assert (again.status_code, again.content) == (200, first.content)
    assert again.headers["idempotent-replayed"] == "true"
    for name in ("content-type", "x-correlation-id"):
        assert again.headers[name] == first.headers[name]
    assert await audited(real) == [verb]
    assert await keys_stored(real) == 1
    other = await real.client.request(method, where, json={**(body or {}), "reason": "another"}, headers=KEY)
    problem(other, 422, "idempotency_key_reused")


async def test_a_dry_run_counts_what_a_redispatch_sends_and_leaves_no_trace(real: World) -> None:
    first, second = await real.started(), await real.started("shop")
    await real.database.run(lambda tx: outbox.delete(tx, [str(first.command_id), str(second.command_id)]))
    for body in ({"dryRun": True}, {"saga": "app", "ids": [first.id, second.id], "dryRun": True}):
        answer = await real.client.post("/redispatch", json=body)
        assert (answer.status_code, answer.json()) == (200, {"dryRun": True, "redispatched": 2})
    async with real.database.read() as connection:
        assert (await connection.execute(text("SELECT count(*) FROM outbox"))).scalar_one() == 0
    assert await audited(real) == []
    assert (await real.client.post("/redispatch", json={})).json() == {"redispatched": 2}


async def test_what_got_lost_in_the_commit_is_not_done_again(real: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its key nobody would tell a letter that was dropped from one that never was."""
    await put(real, letter(1))
    path, commit = ONE.format(id=letter(1).id), Transaction.commit

    async def lost(tx: Transaction) -> None:
        await commit(tx)
        raise OutcomeUnknown("the connection died")

    with monkeypatch.context() as broken:
        broken.setattr(Transaction, "commit", lost)
        unclear = await real.client.request("DELETE", path, json=REASON, headers=KEY)
    problem(unclear, 503, "outcome_unknown")
    again = await real.client.request("DELETE", path, json=REASON, headers=KEY)
    assert (again.status_code, again.json()["id"]) == (200, letter(1).id)
    problem(await real.client.request("DELETE", path, json=REASON), 404, "not_found")


async def test_what_is_refused_is_not_kept(real: World) -> None:
    await put(real, letter(1, queue="evt.unknown"))
    path = ONE.format(id=letter(1).id)
    problem(await real.client.post(f"{path}/redrive", headers=KEY), 409, "illegal_transition")
    problem(await real.client.post(f"{ONE.format(id=letter(9).id)}/redrive", headers=KEY), 404, "not_found")
    assert (await keys_stored(real), await audited(real), await owed(real)) == (0, [], 0)


async def test_a_dry_run_neither_keeps_nor_gives_an_answer(real: World) -> None:
    await put(real, letter(1))
    body = {**REASON, "filter": {}}
    dry = await real.client.post("/dead-letters/redrive?dryRun=true", json=body, headers=KEY)
    assert (dry.json()["dryRun"], await keys_stored(real)) == (True, 0)
    wet = await real.client.post("/dead-letters/redrive", json=body, headers=KEY)
    assert (wet.json()["redriven"], await owed(real)) == (1, 1)


@pytest.mark.parametrize("path", ["/redispatch", "/dead-letters/redrive"])
async def test_a_bad_key_is_400(real: World, path: str) -> None:
    body = {**REASON, "filter": {}} if "dead" in path else REASON
    answer = await real.client.post(path, json=body, headers={"Idempotency-Key": "a b"})
    assert problem(answer, 400, "bad_header")["header"] == "Idempotency-Key"
    assert await audited(real) == []
