"""Are starts coalesced, refused and repeated as promised?"""

from __future__ import annotations

import asyncio
import json

import pytest
from sqlalchemy import text

from orchestrix.engine.requests import ExistingSaga, IdempotencyKey, KeyReused, Replayed, StartedSaga, StartRequest
from orchestrix.errors import NotFound, Unavailable
from orchestrix.persistence.idempotency import StoredAnswer
from orchestrix.persistence.sagas import transitions
from orchestrix.saga.state import Instance
from orchestrix.saga.transition import SagaStart
from tests.integration.orchestration.rig import Rig


def asked(key: str, idempotency: IdempotencyKey | None = None) -> StartRequest:
    return StartRequest("app", SagaStart(key, "ada", f"c-{key}", {}), idempotency)


def keyed(fingerprint: str = "f") -> IdempotencyKey:
    def render(instance: Instance) -> StoredAnswer:
        return StoredAnswer(fingerprint, 200, {}, json.dumps({"id": instance.id}).encode())

    return IdempotencyKey("scope", "key-1", fingerprint, render)


async def test_concurrent_starts_share_commits(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    commits, real = 0, transitions.write

    async def write(*arguments):  # type: ignore[no-untyped-def]
        nonlocal commits
        commits += 1
        return await real(*arguments)

    monkeypatch.setattr(transitions, "write", write)
    results = await asyncio.gather(*(rig.starter.start(asked(f"app-{n}")) for n in range(80)))
    assert all(isinstance(result, StartedSaga) for result in results)
    assert commits <= 4


async def test_one_name_many_times_in_one_batch(rig: Rig) -> None:
    results = await asyncio.gather(*(rig.starter.start(asked("wanted")) for _ in range(50)))
    started = [result for result in results if isinstance(result, StartedSaga)]
    assert len(started) == 1
    assert [result for result in results if result not in started] == [ExistingSaga(started[0].instance.id)] * 49


@pytest.mark.req("S3-16")
async def test_a_start_that_fails_halfway_leaves_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    real = transitions.write

    async def write(*arguments):  # type: ignore[no-untyped-def]
        await real(*arguments)
        raise Unavailable("the database went away")

    monkeypatch.setattr(transitions, "write", write)
    with pytest.raises(Unavailable):
        await rig.starter.start(asked("half"))
    async with rig.database.read() as connection:
        assert (await connection.execute(text("SELECT count(*) FROM apps"))).scalar_one() == 0
    assert await rig.in_outbox() == 0
    assert not rig.broker.tried


async def test_one_bad_member_does_not_cost_its_batch(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    real = transitions.write

    async def write(tx, pair, changed, changes, *owed):  # type: ignore[no-untyped-def]
        if any(change.correlation_id == "c-bad" for _, change in changes):
            raise ValueError("a bug")
        return await real(tx, pair, changed, changes, *owed)

    monkeypatch.setattr(transitions, "write", write)
    names = ["a", "b", "bad", "c", "d"]
    results = await asyncio.gather(*(rig.starter.start(asked(name)) for name in names), return_exceptions=True)
    assert [isinstance(result, StartedSaga) for result in results] == [True, True, False, True, True]


async def test_an_idempotency_key_repeats_the_answer(rig: Rig) -> None:
    first = await rig.starter.start(asked("once", keyed()))
    assert isinstance(first, StartedSaga)
    again = await asyncio.gather(*(rig.starter.start(asked("once", keyed())) for _ in range(10)))
    expected = StoredAnswer("f", 200, {}, json.dumps({"id": first.instance.id}).encode())
    assert again == [Replayed(expected)] * 10
    assert await rig.starter.start(asked("once", keyed("other"))) == KeyReused()


async def test_a_key_on_a_taken_name_stores_nothing(rig: Rig) -> None:
    taken = await rig.begin("taken")
    assert await rig.starter.start(asked("taken", keyed())) == ExistingSaga(taken.id)
    async with rig.database.read() as connection:
        assert (await connection.execute(text("SELECT count(*) FROM idempotency_keys"))).scalar_one() == 0


async def test_unknown_sagas_and_stopped_nodes_refuse(rig: Rig) -> None:
    with pytest.raises(NotFound):
        await rig.starter.start(StartRequest("nobody", SagaStart("k", "ada", "c", {})))
    await rig.starter.stop()
    with pytest.raises(Unavailable):
        await rig.starter.start(asked("late"))


async def test_a_client_that_goes_away_does_not_undo_its_start(rig: Rig) -> None:
    going = asyncio.create_task(rig.starter.start(asked("gone")))
    await asyncio.sleep(0)
    going.cancel()
    await asyncio.gather(going, return_exceptions=True)
    assert isinstance(await rig.starter.start(asked("next")), StartedSaga)
    async with rig.database.read() as connection:
        names = (await connection.execute(text("SELECT app_name FROM apps ORDER BY id"))).scalars().all()
    assert names == ["gone", "next"]
