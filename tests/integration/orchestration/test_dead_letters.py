"""Are dead letters kept once, judged by nobody but people, and sent again with one effect?"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from collections.abc import AsyncIterator, Sequence
from dataclasses import astuple, replace
from datetime import datetime
from pathlib import Path

import pytest

from orchestrix.broker.embedded import EmbeddedBroker
from orchestrix.broker.port import Consumer, Delivery, Outcome, Outgoing, Published
from orchestrix.dead_letters import quota
from orchestrix.dead_letters.collector import LETTERS_PER_QUEUE, DeadLetterCollector
from orchestrix.dead_letters.parse import ParsedDeadLetter, parse, republished
from orchestrix.dead_letters.quota import DeadLetterQuota
from orchestrix.dead_letters.service import DeadLetterFilter, NotSendable
from orchestrix.errors import ConflictError, Invalid, NotFound, Unavailable
from orchestrix.persistence import dead_letters
from orchestrix.persistence.dead_letters import DeadLetter
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.saga.catalog import Catalog
from orchestrix.telemetry import log_events
from tests.integration.orchestration.house import ADA, CATALOG, CREATE, CREATED, House, report
from tests.servers import templates
from tests.support import eventually, holds, logged

MIB = 1024 * 1024
LIMITED = {CREATE: 2, CREATED: 2}


@pytest.fixture(scope="module")
def upgraded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with nothing but the schema, to be copied."""
    path = tmp_path_factory.mktemp("letters") / "empty.db"
    templates.upgraded(f"sqlite+aiosqlite:///{path}")
    return path


@pytest.fixture(params=["embedded", pytest.param("rabbitmq", marks=pytest.mark.servers)])
async def house(request: pytest.FixtureRequest, upgraded: Path, tmp_path: Path) -> AsyncIterator[House]:
    """Over SQLite and each kind of broker; two of the queues let a message come back twice."""
    copy = shutil.copy(upgraded, tmp_path / "test.db")
    database, server = Database(f"sqlite+aiosqlite:///{copy}"), EmbeddedBroker()
    url = str(request.getfixturevalue("rabbitmq_url")) if request.param == "rabbitmq" else ""
    if not url:
        await server.start()
    made = House(database, url or server.url)
    await made.open(LIMITED)
    yield made
    await made.close()
    await database.close()
    if not url:
        await server.stop()


@pytest.fixture
def rabbitmq(request: pytest.FixtureRequest) -> bool:
    """Whether the broker is RabbitMQ."""
    return "rabbitmq" in request.node.name


async def test_what_cannot_be_read_is_kept_with_its_reason(house: House) -> None:
    await house.serve()
    await house.send(CREATED, b"\xff{", id="m-1", correlation_id="c-9", headers={"traceparent": "00-a-b-01"})
    (letter,) = await house.kept()
    assert (letter.queue, letter.exchange, letter.routing_key) == (CREATED, "orchestrator.events", CREATED)
    assert (letter.reason, letter.error, letter.deliveries, letter.saga) == ("not-utf8", None, 1, "app")
    assert (letter.message_id, letter.correlation_id, letter.body) == ("m-1", "c-9", b"\xff{")
    assert (letter.redriven_at, letter.headers["traceparent"]) == (None, "00-a-b-01")
    await house.holds(f"{CREATED}.dead", 0)


async def test_of_a_body_that_is_far_too_long_the_hash_is_kept(house: House, rabbitmq: bool) -> None:
    await house.serve()
    body = b"x" * ((20 if rabbitmq else 15) * MIB)
    await house.send(CREATED, body)
    (letter,) = await house.kept()
    assert letter.reason == f"too-large: {len(body)} bytes, at most {MIB}"
    assert (letter.body, letter.body_size) == (None, len(body))
    assert letter.body_sha256 == hashlib.sha256(body).hexdigest()
    with pytest.raises(NotSendable, match="edit it"):
        await house.letters.redrive(letter.id, ADA)


async def test_what_a_client_rejects_is_kept_as_the_broker_tells_it(house: House) -> None:
    app = await house.begin()
    await house.hand.wait_connected()
    await house.holds(CREATE, 1)
    await house.kill(CREATE)
    await house.mover.start()
    (letter,) = await house.kept()
    assert (letter.queue, letter.reason, letter.type) == (CREATE, "delivery_limit", CREATE)
    assert (letter.saga, letter.instance_id, letter.message_id) == ("app", app.id, app.command_id)
    assert letter.headers["x-death"][0]["reason"] == "delivery_limit"


async def test_a_command_that_kills_its_workers_fails_its_try_and_no_more(house: House) -> None:
    app = await house.begin()
    await house.holds(CREATE, 1)
    await house.kill(CREATE)
    await house.serve()
    again = await house.reached(app, "APP_INITIATED", attempt=2)
    assert (await house.history(app))[-1].reason.startswith("retry 2: evt.stepFailed: DeliveryLimit: ")
    assert again.command_id != app.command_id
    (command,) = await house.take(CREATE)
    assert command.message_id == again.command_id
    await house.send(CREATED, report(again))
    await house.reached(app, "REGISTERING")
    (letter,) = await house.kept()
    assert (letter.redriven, letter.redriven_at) == (0, None), "the command itself is not sent again"


async def test_an_event_that_came_back_too_often_is_sent_once_more(house: House) -> None:
    app = await house.begin()
    await house.send(CREATED, report(app), id="m-1")
    await house.kill(CREATED)
    await house.serve()
    await house.reached(app, "REGISTERING")
    (letter,) = await house.kept()
    assert (letter.redriven, letter.reason) == (1, "delivery_limit")
    assert letter.redriven_at is not None
    assert (await house.history(app))[1].caused_by == "m-1"
    assert [row[:2] for row in await house.audited(app)] == [("orchestrator", "redrive-dead-letter")]


async def test_an_event_that_dies_a_second_time_waits_for_a_person(house: House) -> None:
    app = await house.begin()
    await house.mover.start()
    await house.send(CREATED, report(app))
    for _ in range(2):
        await house.holds(CREATED, 1)
        await house.kill_moved(CREATED)

    async def opened() -> bool:
        return [(one.redriven, one.redriven_at) for one in await house.all_kept()] == [(1, None)]

    await eventually(opened, deadline=10, message="the letter is open again, and still one")
    await house.nothing_owed()
    assert await house.ready(CREATED) == 0


async def test_a_copy_that_comes_again_after_the_commit_is_no_second_death(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = await house.begin()
    await house.bury("evt.appRegistered", b"{", id="m-1")
    await house.send(CREATED, report(app), id="m-2")
    await house.kill(CREATED)
    forgetful = await _forgets_to_acknowledge(house, monkeypatch)
    before = {letter.message_id: letter for letter in await house.kept(2)}
    await house.holds(CREATED, 1)  # what died by the limit is on its way once more
    await forgetful.comes_to_its_senses()
    assert {letter.message_id: letter for letter in await house.kept(2)} == before
    await house.mover.stop()
    for queue in (CREATED, "evt.appRegistered"):
        await house.holds(f"{queue}.dead", 0)
    await house.nothing_owed()
    assert await house.ready(CREATED) == 1


class Forgetful:
    """A consumer whose acknowledgements do not come through: what a process has that dies before its ack."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer, self._acknowledge = consumer, consumer.acknowledge
        self._awake = False
        self.acknowledged = 0

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Forgets it, or does it."""
        self.acknowledged += len(deliveries)
        if self._awake:
            await self._acknowledge(deliveries)

    async def comes_to_its_senses(self) -> None:
        """Both letters come again, and are acknowledged."""
        await eventually(lambda: self.acknowledged == 2, deadline=10)
        self._awake = True
        await self._consumer.reopen()
        await eventually(lambda: self.acknowledged == 4, deadline=10)


async def _forgets_to_acknowledge(house: House, monkeypatch: pytest.MonkeyPatch) -> Forgetful:
    await house.mover.start()
    consumer = house.mover._consumer
    assert consumer is not None
    forgetful = Forgetful(consumer)
    monkeypatch.setattr(consumer, "acknowledge", forgetful.acknowledge)
    return forgetful


async def test_letters_wait_for_the_database(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    real, tries = dead_letters.record, 0

    async def record(*arguments):  # type: ignore[no-untyped-def]
        nonlocal tries
        tries += 1
        if tries < 4:
            raise Unavailable("the database is away")
        await real(*arguments)

    monkeypatch.setattr(dead_letters, "record", record)
    await house.bury(CREATED, b"{")
    await house.mover.start()
    await house.kept()
    await house.holds(f"{CREATED}.dead", 0)


async def test_what_comes_back_often_is_not_dropped_by_the_broker(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some drop from a queue without dead letters of its own what has come back 20 times."""
    real, tries, away = dead_letters.record, 0, True

    async def record(*arguments):  # type: ignore[no-untyped-def]
        nonlocal tries
        tries += 1
        if away:
            raise Unavailable("the database is away")
        await real(*arguments)

    monkeypatch.setattr(dead_letters, "record", record)
    await house.bury(CREATED, b"{", id="m-1", reason="not-json: x", correlation_id="c-1", headers={"x-redriven": "2"})
    await house.send("evt.fantasy", b"{}", id="m-2")
    await house.mover.start()
    consumer = house.mover._consumer
    assert consumer is not None
    for _ in range(50):
        before = tries
        await eventually(lambda before=before: tries > before, deadline=10)  # type: ignore[misc]
        await consumer.reopen()
    away = False
    letters = {one.message_id: one for one in await house.kept(2)}
    buried, unrouted = letters["m-1"], letters["m-2"]
    assert (buried.reason, buried.correlation_id, buried.deliveries) == ("not-json: x", "c-1", 1)
    assert buried.headers["x-redriven"] == "2"
    assert (unrouted.reason, unrouted.routing_key) == ("unrouted", "evt.fantasy")


class Moody:
    """Cannot look at letters with some contents, as long as it is in that mood."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *bad: bytes) -> None:
        self.bad = set(bad)
        self.failures = 0
        monkeypatch.setattr("orchestrix.dead_letters.collector.parse", self)
        monkeypatch.setattr("orchestrix.dead_letters.retry_buffer.FIRST_RETRY_DELAY_S", 0.05)
        monkeypatch.setattr("orchestrix.dead_letters.retry_buffer.RETRY_DELAY_LIMIT_S", 0.2)

    def __call__(self, delivery: Delivery, catalog: Catalog, now: datetime) -> ParsedDeadLetter:
        """`parse`, or a bug in it."""
        if delivery.body in self.bad:
            self.failures += 1
            raise ZeroDivisionError("a bug")
        return parse(delivery, catalog, now)


async def test_one_that_cannot_be_kept_holds_up_no_other(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    Moody(monkeypatch, b"3")
    for n in range(8):
        await house.bury(CREATED, b"%d" % n)
    await house.mover.start()
    assert sorted(one.body or b"" for one in await house.kept(7)) == [b"0", b"1", b"2", b"4", b"5", b"6", b"7"]
    assert house.mover.problem() == "cannot store 1 dead letter (kept by the broker): see the log"
    await house.mover.stop()
    await house.holds(f"{CREATED}.dead", 1)


async def test_what_cannot_be_kept_is_tried_again_and_is_seldom_in_the_log(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mood = Moody(monkeypatch, b"0", b"1")
    for n in range(3):
        await house.bury(CREATED, b"%d" % n, id=f"m-{n}", reason=f"not-json: {n}")
    await house.mover.start()
    assert [one.body for one in await house.kept()] == [b"2"]
    await eventually(lambda: mood.failures > 20, deadline=10)
    assert [one.levelname for one in caplog.records if "cannot store" in one.message] == ["ERROR"]
    mood.bad.clear()
    letters = {one.body: one for one in await house.kept(3)}
    assert [(one.message_id, one.reason) for _, one in sorted(letters.items())] == [
        (f"m-{n}", f"not-json: {n}") for n in range(3)
    ]
    await house.holds(f"{CREATED}.dead", 0)
    await house.mover.stop()
    await house.holds(f"{CREATED}.dead", 0)
    assert house.mover.problem() is None


async def test_a_crowd_that_cannot_be_kept_lets_others_pass(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = [b"bad %d" % n for n in range(2 * LETTERS_PER_QUEUE)]
    mood = Moody(monkeypatch, *crowd)
    for body in (*crowd, b"good"):
        await house.bury(CREATED, body)
    await house.mover.start()
    assert [one.body for one in await house.kept()] == [b"good"]
    mood.bad.clear()
    assert {one.body for one in await house.kept(len(crowd) + 1)} == {*crowd, b"good"}
    await house.holds(f"{CREATED}.dead", 0)


async def test_what_has_come_back_often_and_cannot_be_kept_holds_up_no_other(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrix.dead_letters.collector.REDELIVERY_LIMIT", 1)
    mood = Moody(monkeypatch, b"bad")
    for body in (b"bad", b"good"):
        await house.bury(CREATED, body)
    reader = await house.hand.consume([f"{CREATED}.dead"], prefetch=1)
    await reader.receive(1)
    await reader.close()
    await house.mover.start()
    assert [one.body for one in await house.kept()] == [b"good"]
    mood.bad.clear()
    await house.kept(2)
    await house.holds(f"{CREATED}.dead", 0)


async def test_one_that_a_database_refuses_with_an_outages_words_holds_up_no_other(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = dead_letters.record

    async def record(tx: Transaction, letters: Sequence[DeadLetter]) -> None:
        if any(one.body == b"bad" for one in letters):
            raise Unavailable("the database is unavailable: packet too large")
        await real(tx, letters)

    monkeypatch.setattr(dead_letters, "record", record)
    monkeypatch.setattr("orchestrix.dead_letters.collector.ERRORS_BEFORE_PING", 2)
    for body in (b"1", b"bad", b"2", b"3"):
        await house.bury(CREATED, body)
    await house.mover.start()
    assert sorted(one.body or b"" for one in await house.kept(3)) == [b"1", b"2", b"3"]
    await eventually(lambda: house.mover.problem() is not None, deadline=10)
    await house.mover.stop()
    await house.holds(f"{CREATED}.dead", 1)


async def test_the_health_page_tells_of_letters_that_cannot_be_kept(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    mood = Moody(monkeypatch, b"bad")
    await house.bury(CREATED, b"bad")
    await house.serve()
    assert house.node is not None
    health, told = house.node.health, "cannot store 1 dead letter (kept by the broker): see the log"
    await eventually(lambda: ("Dead letters", True, told) in map(astuple, health.checks()), deadline=10)
    mood.bad.clear()
    await eventually(lambda: ("Dead letters", True, None) in map(astuple, health.checks()), deadline=10)


async def test_while_the_database_is_away_nothing_is_put_aside(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    pings, away = 0, True

    async def ping() -> None:
        nonlocal pings
        pings += 1
        raise Unavailable("the database is away")

    real = dead_letters.record

    async def record(tx: Transaction, letters: Sequence[DeadLetter]) -> None:
        if away:
            raise Unavailable("the database is away")
        await real(tx, letters)

    monkeypatch.setattr(dead_letters, "record", record)
    monkeypatch.setattr(house.database, "ping", ping)
    monkeypatch.setattr("orchestrix.dead_letters.collector.ERRORS_BEFORE_PING", 1)
    await house.bury(CREATED, b"1")
    await house.mover.start()
    await eventually(lambda: pings >= 3, deadline=10)
    assert house.mover.problem() is None
    away = False
    await house.kept()


@pytest.mark.parametrize("told", [None, "m-1", "\ufffd" * 255])
async def test_what_is_put_back_anew_can_be_sent(house: House, told: str | None) -> None:
    garbage = "\ufffd" * 255
    died: dict[str, object] = {"x-first-death-reason": "rejected", "traceparent": garbage * 9, "x-death": [garbage]}
    dead = Delivery(
        body=b"x",
        queue=f"{CREATED}.dead",
        exchange="orchestrator.dead",
        routing_key=CREATED,
        message_id=told,
        correlation_id=garbage,
        type=garbage,
        headers=died,
        redelivered=True,
        delivery_count=10,
        tag=1,
        session=1,
    )
    first, second = republished(dead), republished(dead)
    assert (first.message_id == second.message_id) == (told is not None)
    assert (first.message_id == told) == (told == "m-1")
    [published] = await house.hand.publish([first])
    assert published.outcome is Outcome.CONFIRMED, published
    await house.mover.start()
    (letter,) = await house.kept()
    assert (letter.reason, letter.queue, letter.body) == ("rejected", CREATED, b"x")


async def test_a_failure_is_sent_whatever_the_correlation_id(house: House) -> None:
    app = await house.begin()
    await house.holds(CREATE, 1)
    (old,) = await house.take(CREATE)
    long = json.loads(old.body) | {"correlationId": "\U0001f600" * 128}
    await house.send(CREATE, json.dumps(long).encode(), id=app.command_id or "")
    await house.kill(CREATE)
    await house.mover.start()
    (letter,) = await house.kept()
    assert letter.correlation_id == "\U0001f600" * 128
    await house.holds("evt.stepFailed", 1)
    (failure,) = await house.take("evt.stepFailed")
    assert json.loads(failure.body)["correlationId"] == "\U0001f600" * 128
    assert failure.correlation_id is None


async def test_an_edited_letter_completes_its_saga(house: House) -> None:
    app = await house.begin()
    await house.serve()
    await house.send(CREATED, report(app, data={"repoUrl": 5}), id="m-1")
    (letter,) = await house.kept()
    assert (letter.reason.partition(":")[0], letter.instance_id) == ("bad-output", app.id)
    with pytest.raises(Invalid, match="at most 65536"):
        await house.letters.edit(letter.id, b"x" * 70_000, ADA)
    edited = await house.letters.edit(letter.id, report(app, data={"repoUrl": "file:///r"}), ADA)
    assert edited.edited_at is not None
    assert await house.letters.edit(letter.id, report(app, data={"repoUrl": "file:///r"}), ADA) == edited
    await house.letters.redrive(letter.id, ADA)
    second = await house.reached(app, "REGISTERING")
    assert second.data == {"repoUrl": "file:///r"}
    await house.send("evt.appRegistered", report(second))
    await house.reached(app, "COMPLETED")
    assert [row[:2] for row in await house.audited(app)] == [
        ("ada", "edit-dead-letter"),
        ("ada", "redrive-dead-letter"),
    ]
    with pytest.raises(ConflictError, match="redriven already"):
        await house.letters.edit(letter.id, b"{}", ADA)


async def test_an_edited_letter_is_about_the_saga_that_its_body_names(house: House) -> None:
    wrong, right = await house.begin("wrong"), await house.begin("right")
    await house.bury(CREATED, report(wrong), id="m-1", correlation_id=wrong.correlation_id)
    await house.mover.start()
    (letter,) = await house.kept()
    edited = await house.letters.edit(letter.id, report(right), ADA)
    assert (edited.saga, edited.instance_id, edited.correlation_id) == ("app", right.id, right.correlation_id)
    assert (await house.audits(wrong), await house.about(wrong)) == ([], [])
    assert await house.about(right) == [edited]
    (edit,) = await house.audits(right)
    before = {"sagaBefore": "app", "appIdBefore": wrong.id, "correlationIdBefore": wrong.correlation_id}
    assert (edit.detail or {}).items() >= before.items()
    await house.letters.redrive(letter.id, ADA)
    (event,) = await house.take(CREATED)
    assert (event.message_id, event.correlation_id) == ("m-1", right.correlation_id)


async def test_what_an_edited_body_leaves_out_is_not_known_any_more(house: House) -> None:
    app = await house.begin()
    await house.send("evt.gitRepoCreatd", report(app), id="m-1")
    await house.bury(CREATED, report(app), id="m-2")
    await house.mover.start()
    for letter in await house.kept(2):
        edited = await house.letters.edit(letter.id, b'{"saga":"order","correlationId":"c-2"}', ADA)
        saga = "app" if letter.queue == CREATED else "order"  # whose event it is says more than the body
        assert (edited.saga, edited.instance_id, edited.correlation_id) == (saga, None, "c-2")
        again = await house.letters.edit(letter.id, b"{", ADA)
        assert (again.instance_id, again.correlation_id) == (None, "c-2")
    assert await house.about(app) == []


async def test_sent_again_twice_it_goes_once(house: House) -> None:
    app = await house.begin()
    await house.bury(CREATED, report(app), id="m-1", reason="cannot-be-handled: Conflict")
    await house.mover.start()
    (letter,) = await house.kept()
    assert (letter.reason, letter.error) == ("cannot-be-handled: Conflict", "Conflict")
    first, second = await asyncio.gather(*(house.letters.redrive(letter.id, ADA) for _ in range(2)))
    assert first == second == await house.letters.redrive(letter.id, ADA)
    (event,) = await house.take(CREATED)
    assert (event.body, event.message_id, event.correlation_id) == (letter.body, "m-1", letter.correlation_id)
    assert event.headers["x-redriven"] == "1"
    await house.nothing_owed()
    assert await house.ready(CREATED) == 0
    assert len(await house.audited(app)) == 1


async def test_what_is_sent_again_waits_for_nothing_and_holds_up_nothing(house: House) -> None:
    app = await house.begin("held")
    (old,) = await house.take(CREATE)
    await house.bury(CREATE, old.body, id=old.message_id or "", reason="not-json: mended")
    await house.mover.start()
    (letter,) = await house.kept()
    await house.letters.redrive(letter.id, ADA)
    other = await house.begin("free")
    commands = await house.take(CREATE, 2)
    assert {one.message_id for one in commands} == {app.command_id, other.command_id}
    assert await house.now(app) == app, "the relay takes it for no command of its own"


async def test_letters_without_an_id_of_their_own_keep_that_of_their_letter(house: House) -> None:
    long = "m" * 200
    await house.bury(CREATED, b"{", id=long)
    await house.mover.start()
    (letter,) = await house.kept()
    assert letter.message_id == long
    await house.letters.redrive(letter.id, ADA)
    (event,) = await house.take(CREATED)
    assert event.message_id == letter.id
    await house.bury(CREATED, event.body, id=letter.id, headers={"x-redriven": "1"})

    async def opened() -> bool:
        return (await house.letter(letter.id)).redriven_at is None

    await eventually(opened, deadline=10, message="it is the same letter, and open again")
    assert (await house.kept())[0].redriven == 1


async def test_two_letters_with_one_id_are_both_sent(house: House) -> None:
    for body in (b"1", b"2"):
        await house.bury(CREATED, body, id="same")
    await house.mover.start()
    await house.kept(2)
    done = await house.letters.redrive_all(DeadLetterFilter(queue=CREATED), ADA)
    assert (done.matched, done.redriven, done.refused) == (2, 2, [])
    assert sorted(one.body for one in await house.take(CREATED, 2)) == [b"1", b"2"]


async def test_those_that_fit_are_sent_again(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrix.dead_letters.service.LETTERS_PER_TRANSACTION", 2)
    for n in range(5):
        await house.bury(CREATED, b"%d" % n, reason="not-json: x")
    await house.bury(CREATED, b"x" * 70_000, reason="not-json: y")
    await house.bury(CREATED, b"7", reason="too-deep")
    await house.bury("evt.stepFailed", b"8")
    await house.mover.start()
    await house.kept(8)
    wanted = DeadLetterFilter(queue=CREATED, reason="not-json")
    assert (await house.letters.redrive_all(wanted, ADA, dry_run=True)).matched == 6
    assert await house.owed() == 0
    done = await house.letters.redrive_all(wanted, ADA)
    assert (done.matched, done.redriven, len(done.refused)) == (6, 5, 1)
    assert "70000 bytes" in done.refused[0][1]
    assert sorted(one.body for one in await house.take(CREATED, 5)) == [b"0", b"1", b"2", b"3", b"4"]
    assert (await house.letters.redrive_all(wanted, ADA)).matched == 1
    assert await house.ready("evt.stepFailed") == 0


async def test_unrouted_messages_go_where_they_were_going(house: House) -> None:
    app = await house.begin()
    await house.mover.start()
    await house.send("evt.gitRepoCreatd", report(app), id="m-1")
    (letter,) = await house.kept()
    assert (letter.queue, letter.routing_key, letter.reason) == (
        "orchestrator.unrouted",
        "evt.gitRepoCreatd",
        "unrouted",
    )
    assert (letter.saga, letter.instance_id, letter.type) == ("app", app.id, "evt.gitRepoCreatd")
    await house.letters.redrive(letter.id, ADA)

    async def back() -> bool:
        (now,) = await house.all_kept()
        return (now.redriven, now.redriven_at) == (1, None)

    await eventually(back, deadline=10, message="nobody is bound for it still: it is open again")


async def test_an_answer_whose_queue_was_missing_finds_its_way_when_it_is_there_again(house: House) -> None:
    app = await house.begin()
    await house.hand.delete(CREATED)
    foreign = {name: value for name, value in json.loads(report(app)).items() if name != "saga"}
    await house.send(CREATED, json.dumps(foreign).encode(), id="m-1")
    await house.holds("orchestrator.unrouted", 1)
    await house.mover.start()
    await house.holds(CREATED, 1)
    (letter,) = await house.kept()
    assert (letter.queue, letter.reason, letter.redriven) == ("orchestrator.unrouted", "unrouted", 1)
    assert (letter.saga, letter.redriven_at is not None) == ("app", True)
    assert [row[:2] for row in await house.audited(app)] == [("orchestrator", "redrive-dead-letter")]
    await house.serve()
    await house.reached(app, "REGISTERING")
    assert (await house.history(app))[1].caused_by == "m-1"


async def test_a_letter_that_the_broker_refuses_is_open_again_and_says_why(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.bury(CREATED, b"{", id="m-1")
    await house.bury(CREATED, b"}", id="m" * 99)
    await house.bury(CREATED, b"[", id="m-1 ")
    await house.mover.start()
    letters = await house.kept(3)
    refuse(house, monkeypatch, CREATED)
    for letter in letters:
        await house.letters.redrive(letter.id, ADA)
    await house.nothing_owed()
    for letter in letters:
        now = await house.letter(letter.id)
        assert now == replace(letter, error="PRECONDITION_FAILED - too large", redriven=1)
        assert (await house.letters.edit(letter.id, b"{}", ADA)).body == b"{}"
    monkeypatch.undo()
    await house.letters.redrive(letters[0].id, ADA)
    (event,) = await house.take(CREATED)
    assert (event.body, event.headers["x-redriven"]) == (b"{}", "2")


async def test_a_failure_that_the_broker_refuses_is_in_the_log_and_its_letter_open(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = await house.begin()
    await house.holds(CREATE, 1)
    await house.kill(CREATE)
    refuse(house, monkeypatch, "evt.stepFailed")
    await house.mover.start()
    (letter,) = await house.kept()
    await eventually(lambda: "cannot send evt.stepFailed" in caplog.text, deadline=10)
    await house.nothing_owed()
    assert await house.letter(letter.id) == letter
    assert (letter.redriven_at, letter.instance_id) == (None, app.id)
    (lost,) = (one for one in caplog.messages if "is lost" in one)
    assert [one["correlation_id"] for one in logged(caplog, log_events.MESSAGE_UNSENDABLE)] == [app.correlation_id]
    assert "evt.stepFailed" in lost
    assert app.correlation_id in lost


def refuse(house: House, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    """From now on the node's broker takes nothing that has this routing key."""
    publish = house.broker.publish

    async def picky(messages: Sequence[Outgoing], timeout: float = 10.0) -> list[Published]:
        if any(one.routing_key == key for one in messages):
            return [Published(Outcome.REFUSED, "PRECONDITION_FAILED - too large") for _ in messages]
        return await publish(messages, timeout)

    monkeypatch.setattr(house.broker, "publish", picky)


async def test_what_nobody_here_knows_cannot_be_sent(house: House) -> None:
    await house.bury("evt.fantasy", b"{}")
    await house.mover.start()
    (letter,) = await house.kept()
    assert (letter.queue, letter.reason, letter.saga) == ("evt.fantasy", "not-json", None)
    with pytest.raises(NotSendable, match=r"evt\.fantasy"):
        await house.letters.redrive(letter.id, ADA)
    assert (await house.letter(letter.id)).redriven_at is None


async def test_a_dropped_letter_is_gone(house: House) -> None:
    app = await house.begin()
    await house.bury(CREATED, report(app))
    await house.mover.start()
    (letter,) = await house.kept()
    assert await house.letters.drop(letter.id, ADA) == letter
    assert await house.all_kept() == []
    assert await house.audited(app) == [("ada", "drop-dead-letter", ADA.reason)]
    for call in (house.letters.drop, house.letters.redrive):
        with pytest.raises(NotFound):
            await call(letter.id, ADA)


async def test_more_than_a_minute_has_room_for_stays_in_its_queue(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What follows by itself from a letter does not count: a saga must not wait behind junk that anybody can send."""
    monkeypatch.setattr(quota, "REFILL_WAIT_S", 0.1)
    house.mover = mover = DeadLetterCollector(
        house.database, house.broker, CATALOG, house.relay.notify, quota=DeadLetterQuota(5)
    )
    app = await house.begin()
    await house.holds(CREATE, 1)
    await house.kill(CREATE)
    await mover.start()
    await house.kept()
    for number in range(12):
        await house.bury(CREATED, b"junk", id=f"m-{number}")
    await house.kept(6)
    await eventually(lambda: mover.problem() is not None, deadline=5)
    await holds(lambda: mover.problem() is not None, during=1.0)
    assert len(await house.all_kept()) == 6, "five of them, and the command, which does not count"
    said = [one for one in caplog.records if "limit of dead letters per minute" in one.getMessage()]
    assert len(said) == 1
    await mover.stop()
    await house.holds(f"{CREATED}.dead", 7)
    assert (await house.now(app)).attempt == 1


def test_dead_letters_of_every_reserved_queue_are_collected(house: House) -> None:
    queues = house.mover._own_queues()
    assert {"evt.stepStarted.dead", "evt.stepFailed.dead", "cmd.createGitRepo.dead"} <= set(queues)
