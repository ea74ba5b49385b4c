"""Do messages of members that no node can read come to people, and is one that was edited answered?"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from orchestrix.bootstrap.context import COORDINATOR, NodeContext, NodeSignals
from orchestrix.bootstrap.factories import open_broker
from orchestrix.bootstrap.shards import shard_works
from orchestrix.broker.embedded import EmbeddedBroker
from orchestrix.broker.topology import SHARD_COORDINATOR
from orchestrix.config.settings import load
from orchestrix.dead_letters import job_dead_letters
from orchestrix.domain.shards import messages
from orchestrix.domain.shards.grants import shards_of
from orchestrix.domain.shards.state import MemberRegistration
from orchestrix.lifecycle import Services
from orchestrix.persistence.engine import Database
from orchestrix.saga.catalog import Catalog
from orchestrix.worker.shards.rabbitmq import MemberTransport
from tests.integration.orchestration.house import ADA, House
from tests.servers import templates
from tests.support import eventually

SERVICE = "orders"
ASKED = MemberRegistration(worker_id="w-1", instance="i-1", shard_count=10, seq=1)


@pytest.fixture(params=["embedded", pytest.param("rabbitmq", marks=pytest.mark.servers)])
async def house(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[House]:
    """An orchestrator and a coordinator over SQLite and each kind of broker."""
    monkeypatch.setattr(job_dead_letters, "QUEUE_POLL_INTERVAL_S", 0.1)
    template = tmp_path / "empty.db"
    templates.upgraded(f"sqlite+aiosqlite:///{template}")
    database = Database(f"sqlite+aiosqlite:///{shutil.copy(template, tmp_path / 'test.db')}")
    server = EmbeddedBroker()
    await server.start()
    url = str(request.getfixturevalue("rabbitmq_url")) if request.param == "rabbitmq" else server.url
    made = House(database, url)
    await made.open({})
    settings = load({}, shards__window=0.2)
    context = NodeContext("n-1", settings, frozenset({COORDINATOR}), database, made.broker, Catalog([]), NodeSignals())
    coordinator = Services(shard_works(context, partial(open_broker, url)))
    await coordinator.start()
    await made.serve()
    yield made
    await coordinator.stop()
    await made.close()
    await database.close()
    await server.stop()


@pytest.mark.req("S1-15", "S1-51")
async def test_an_unreadable_registration_is_kept_and_once_edited_and_redriven_its_member_is_answered(
    house: House,
) -> None:
    member = MemberTransport(house.hand, "w-1")
    await member.start()
    unreadable = b'{"type": "register"'
    await eventually(
        lambda: member.send(messages.REGISTER, unreadable, "c-1"), deadline=10, message="the queue is there"
    )
    (refused,) = await member.receive()
    assert messages.read_assignment(refused.body, "w-1").problem
    (letter,) = await house.kept()
    assert (letter.queue, letter.correlation_id) == (SHARD_COORDINATOR, "c-1")
    assert letter.reason.startswith("not-json"), letter.reason
    await house.letters.edit(letter.id, messages.register(SERVICE, ASKED), ADA)
    await house.letters.redrive(letter.id, ADA)
    (answered,) = await member.receive()
    got = messages.read_assignment(answered.body, "w-1")
    assert (got.problem, list(shards_of(got.grants).numbers())) == (None, list(range(10)))
    assert (await house.letter(letter.id)).redriven == 1
    await member.stop()
