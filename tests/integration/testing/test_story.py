"""Does a story play a saga as production does, and say so when it ends otherwise than expected?"""

from __future__ import annotations

import asyncio
import timeit
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from orchestrix import Command, Context, Hold, Permanent
from orchestrix.saga.definition import InvalidDataError
from orchestrix.saga.errors import IllegalTransition
from orchestrix.testing import Story, StoryError, between, given
from orchestrix.worker.errors import Unavailable
from sagas.app_provisioning import APP_PROVISIONING
from tests.unit.testing import orders
from tests.unit.testing.orders import ORDER, PROVIDER, RETRY

GOOD = ["ORDERED", "PAYING", "SHIPPING", "COMPLETED"]
BACK = ["COMPENSATING", "FAILED"]


@pytest.fixture(autouse=True)
def provider() -> Iterator[None]:
    """Nobody is charged yet."""
    PROVIDER.empty()
    yield
    PROVIDER.empty()


def order(seed: int = 0) -> Story:
    """An order of twelve."""
    return given(ORDER, handlers=orders, data={"amount": 12}, seed=seed)


def shown(story: Story, **expected: Any) -> str:
    """What `expect` says where it fails."""
    with pytest.raises(AssertionError) as wrong:
        story.expect(**expected)
    return str(wrong.value)


def test_a_good_run() -> None:
    story = order().run()
    story.expect(
        state="COMPLETED",
        path=GOOD,
        commands=["cmd.reserve", "cmd.pay", "cmd.ship"],
        undone=[],
        data={"seat": "row 1", "paid": 12},
        elapsed=between("1.2s", "1.3s"),
        blocker=None,
    )
    assert list(PROVIDER.charges.values()) == [12]


def test_what_is_done_is_undone_from_the_last_to_the_first() -> None:
    story = order()
    story.when("cmd.ship").fails("NoStock", "none is left", retryable=False)
    story.run()
    story.expect(
        state="FAILED",
        path=[*GOOD[:3], *BACK],
        commands=["cmd.reserve", "cmd.pay", "cmd.ship", "cmd.refund", "cmd.free"],
        undone=["pay", "reserve"],
        error="NoStock: none is left",
    )
    assert PROVIDER.charges == {}


@pytest.mark.parametrize("seed", range(3))
def test_tries_are_spaced_as_the_policy_says(seed: int) -> None:
    story = order(seed)
    story.when("cmd.ship").fails("Busy").times(3)
    story.run()
    story.expect(state="COMPLETED", attempts={"cmd.ship": 4, "cmd.pay": 1})
    waits = [later - earlier for earlier, later in pairwise(story.tries("cmd.ship"))]
    widest = [RETRY.wait(tries, 1.0).total_seconds() for tries in (1, 2, 3)]
    assert widest == [2, 4, 8]
    assert all(0 <= wait <= most + 0.05 for wait, most in zip(waits, widest, strict=True)), waits


def test_a_worker_can_wish_when() -> None:
    story = order()
    story.when("cmd.ship").fails("Busy", retry_after="90s").times(1)
    story.run()
    first, second = story.tries("cmd.ship")
    assert second - first == pytest.approx(90, abs=0.05)


def test_the_last_try_fails_the_saga() -> None:
    story = order()
    story.when("cmd.ship").fails("Busy")
    story.run()
    story.expect(state="FAILED", attempts={"cmd.ship": RETRY.attempts}, undone=["pay", "reserve"], error="Busy")


def test_silence_ends_at_the_deadline_and_may_have_done_something() -> None:
    story = order()
    story.when("cmd.pay").never_answers()
    story.run()
    story.expect(state="FAILED", error="deadline", attempts={"cmd.pay": 5}, undone=["pay", "reserve"])
    gaps = [later - earlier for earlier, later in pairwise(story.tries("cmd.pay"))]
    assert all(60 <= gap <= 60 + 16.1 for gap in gaps)


def test_what_takes_too_long_is_reported_by_the_worker() -> None:
    story = order()
    story.when("cmd.ship").takes("5m").times(1)
    story.run()
    story.expect(state="COMPLETED", attempts={"cmd.ship": 2})
    assert "ship timed out after 20 s" in story.table()


def test_an_answer_instead_of_the_handler() -> None:
    story = order()
    story.when("cmd.pay").succeeds({"paid": 1})
    story.run().expect(state="COMPLETED", data={"paid": 1})
    assert not PROVIDER.calls


@pytest.mark.parametrize(
    ("where", "charged"),
    [
        ({"before": "cmd.pay"}, 1),
        ({"during": "cmd.pay"}, 1),
        ({"after": "cmd.pay"}, 2),
        ({"before": "evt.paid"}, 2),
        ({"after": "evt.paid"}, 1),
        ({"before": "PAYING"}, 1),
        ({"after": "PAYING"}, 1),
        ({"after": "cmd.pay sent"}, 1),
        ({"before": "ORDERED"}, 1),
        ({"after": "ORDERED"}, 1),
        ({"after": "COMPLETED"}, 1),
        ({"after": "outbox", "nth": 2}, 1),
    ],
)
def test_whoever_dies_the_saga_ends_well(where: dict[str, Any], charged: int) -> None:
    story = order().crash(**where).run()
    story.expect(state="COMPLETED", path=GOOD, data={"paid": 12})
    assert list(PROVIDER.calls.values()) == [charged], "one key, whoever dies"
    assert story.table().count("CRASH") == story.table().count("is started again") == 1


def test_whoever_dies_is_away_for_a_while() -> None:
    story = order().crash(after="cmd.pay", back_after="10s").run()
    story.expect(elapsed=between("11s", "12s"))


def test_a_crash_of_a_later_try() -> None:
    story = order().crash(before="cmd.ship", nth=2)
    story.when("cmd.ship").fails("Busy").times(1)
    story.run().expect(state="COMPLETED", attempts={"cmd.ship": 2})


def test_a_crash_that_never_came_is_no_proof() -> None:
    story = order().crash(after="cmd.refund").run()
    assert shown(story, state="COMPLETED").startswith("the crash after cmd.refund never happened\n")


def test_a_pause_lasts_until_it_ends() -> None:
    story = order().run(until="PAYING").pause("lunch")
    story.run().expect(state="PAYING", blocker="paused")
    story.run(until="5m").expect(state="PAYING", blocker="paused")
    story.resume().run().expect(state="COMPLETED", elapsed=between("5m", "302s"))
    assert "PAYING  pause: lunch  (ada)" in story.table()


def test_a_cancelled_saga_is_undone_with_what_was_out() -> None:
    story = order().run(until="cmd.pay").cancel("no more").run()
    story.expect(state="FAILED", undone=["pay", "reserve"], error="cancel: no more")


def test_a_terminated_saga_leaves_all_behind() -> None:
    story = order().run(until="SHIPPING").terminate().run()
    story.expect(state="FAILED", undone=[], attempts={"cmd.refund": 0})
    assert PROVIDER.charges


def test_a_failed_saga_runs_again() -> None:
    story = order()
    story.when("cmd.ship").fails("NoStock", retryable=False).times(1)
    story.run().expect(state="FAILED")
    story.retry("there is some").run().expect(
        state="COMPLETED", path=[*GOOD[:3], *BACK, *GOOD], attempts={"cmd.ship": 2}
    )


def test_a_step_is_skipped_and_data_are_edited() -> None:
    story = order().run(until="PAYING").pause().run().edit({"amount": 7, "seat": None}).resume().run(until="SHIPPING")
    story.skip({"parcel": "by hand"}).run()
    story.expect(state="COMPLETED", data={"amount": 7, "paid": 7, "parcel": "by hand"})
    assert "seat" not in story.ending.data


def test_an_undo_that_fails_waits_for_a_person() -> None:
    story = order()
    story.when("cmd.ship").fails("NoStock", retryable=False)
    story.when("cmd.refund").fails("Closed", retryable=False).times(1)
    story.run().expect(state="COMPENSATION_FAILED", blocker="undo_failed", undone=[])
    story.retry().run().expect(state="FAILED", undone=["pay", "reserve"])


def test_a_word_that_does_not_fit_is_refused() -> None:
    story = order().run()
    with pytest.raises(IllegalTransition, match="cannot pause: saga 1 is already COMPLETED"):
        story.pause()


def test_a_person_is_heard_although_the_node_dies() -> None:
    story = order().run(until="PAYING").crash(after="COMPENSATING").cancel().run()
    story.expect(state="FAILED", undone=["pay", "reserve"])
    assert "CRASH after COMPENSATING" in story.table()


async def _nothing(context: Context, command: Any) -> None:
    """Succeeds."""


def _commands() -> list[str]:
    return ["cmd.reserve", "cmd.free", "cmd.pay", "cmd.refund", "cmd.ship"]


def test_the_saga_of_apps() -> None:
    async def create(context: Context, command: Any) -> dict[str, str]:
        return {"repoUrl": f"memory:{context.app_name}"}

    async def register(context: Context, command: Any) -> None:
        raise Permanent("ForeignGroup", "it is taken")

    done = dict.fromkeys(("cmd.deleteGitRepo", "cmd.unregisterApp"), _nothing)
    handlers = {"cmd.createGitRepo": create, "cmd.registerApp": register, **done}
    story = given(APP_PROVISIONING, handlers=handlers, key="billing").run()
    story.expect(
        path=["APP_INITIATED", "GIT_REPO_CREATED", "REGISTERING", *BACK],
        commands=["cmd.createGitRepo", "cmd.registerApp", "cmd.deleteGitRepo"],
        undone=["createGitRepo"],
        data={"repoUrl": "memory:billing"},
    )


def test_the_same_seed_tells_the_same_story() -> None:
    def told(seed: int) -> str:
        story = order(seed).crash(during="cmd.pay")
        story.when("cmd.ship").fails("Busy").times(2)
        return story.run().table()

    assert told(1) == told(1) != told(2)


def test_a_failed_expectation_shows_what_happened() -> None:
    story = order()
    story.when("cmd.ship").fails("NoStock", retryable=False)
    text = shown(story.run(), state="COMPLETED", data={"paid": 13}, elapsed="2s", path=GOOD, error="Late")
    assert text.startswith("state: 'FAILED', expected 'COMPLETED'\ndata['paid']: 12, expected 13\nelapsed: ")
    for line in (
        "0.000  saga    ORDERED  created  (author)",
        "worker  begins cmd.pay",
        'worker  evt.paid {"paid": 12}',
        "node    cmd.refund attempt 1",
        "FAILED  undone: evt.stepFailed: NoStock: stubbed  (orchestrator)",
    ):
        assert line in text


def test_a_bug_in_a_handler_is_told_with_its_line() -> None:
    async def ship(context: Context, command: Any) -> None:
        command.data["nowhere"]

    story = given(ORDER, handlers={**dict.fromkeys(_commands(), _nothing), "cmd.ship": ship}).run()
    story.expect(state="FAILED", error="KeyError")
    assert "cmd.ship failed: KeyError('nowhere') (" in story.table()


def test_a_worker_without_its_provider_keeps_the_command() -> None:
    away = [Unavailable("no network")] * 3

    async def ship(context: Context, command: Any) -> None:
        if away:
            raise away.pop()

    story = given(ORDER, handlers={**dict.fromkeys(_commands(), _nothing), "cmd.ship": ship}).run()
    story.expect(state="COMPLETED", attempts={"cmd.ship": 1})


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda: asyncio.to_thread(print), "a thread"),
        (lambda: asyncio.open_connection("localhost", 1), "a thread"),
        (lambda: asyncio.open_connection("127.0.0.1", 1), "a socket"),
        (lambda: asyncio.create_subprocess_exec("true"), "another process"),
    ],
)
def test_what_has_no_place_on_virtual_time_is_refused(call: Any, what: str) -> None:
    async def ship(context: Context, command: Any) -> None:
        await call()

    handlers = {**dict.fromkeys(_commands(), _nothing), "cmd.ship": ship}
    says = f"handler of cmd.ship cannot run in a story: {what} cannot run on virtual time; give it a double"
    with pytest.raises(Exception, match=says):
        given(ORDER, handlers=handlers).run()


def test_what_cannot_be_played_is_a_sentence() -> None:
    story = order()
    for call, says in (
        (lambda: given(ORDER).run(), r'cmd.reserve has no handler: give one, or use story.when\("cmd.reserve"\)'),
        (lambda: given(ORDER, handlers=test_a_good_run), "test_a_good_run handles no command"),
        (lambda: given(ORDER, handlers=[{"cmd.eat": _nothing}]), "saga 'order' has no command cmd.eat; it has cmd.res"),
        (lambda: story.when("cmd.eat"), "saga 'order' has no command cmd.eat"),
        (lambda: story.when("cmd.pay").times(2), "stub the answer first"),
        (lambda: story.when("cmd.pay").succeeds().fails("No"), "already has an answer for all attempts"),
        (lambda: story.crash(before="PAID"), "a crash cannot be before 'PAID': write cmd.reserve, "),
        (lambda: story.crash(before="PAYING", after="PAYING"), "give exactly one of before="),
        (lambda: story.crash(after="PAYING", back_after="soon"), "'soon' is not a duration"),
        (lambda: story.run(until="lunch"), "'lunch' is not a time, nor a state, command or event"),
        (lambda: order().ending, r"the story has not run yet: call run\(\) first"),
    ):
        with pytest.raises(Exception, match=says):
            call()


def test_an_expectation_that_there_is_not() -> None:
    with pytest.raises(TypeError, match="'color' cannot be expected: known are state, path"):
        order().run().expect(color="red")  # type: ignore[call-arg]


def test_data_that_the_saga_refuses() -> None:
    with pytest.raises(InvalidDataError, match="repoUrl"):
        given(APP_PROVISIONING, data={"repoUrl": 7})


def test_a_story_that_does_not_rest_or_goes_elsewhere() -> None:
    story = order()
    story.when("cmd.ship").fails("Busy", retry_after=timedelta(hours=3))
    with pytest.raises(StoryError, match=r"neither ended nor blocked within 60 s\n\n +seconds"):
        story.run(limit="1m")
    with pytest.raises(StoryError, match="it did not reach FAILED"):
        order().run(until="FAILED")


async def test_a_loop_that_runs_is_not_taken_over() -> None:
    with pytest.raises(StoryError, match="run it in a plain function"):
        order().run()


def test_handlers_by_name_by_module_and_without_a_thread() -> None:
    more = {"cmd.pay": _nothing, "cmd.refund": lambda context, command: None}
    story = given(ORDER, handlers=[orders.reserve, orders.free, more, orders.ship])
    story.when("cmd.ship").fails("NoStock", retryable=False)
    story.run().expect(state="FAILED", undone=["pay", "reserve"])


def test_a_story_is_told_in_no_time() -> None:
    assert min(timeit.repeat(lambda: order().run(), number=1, repeat=7)) < 0.3


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (lambda: {"at": datetime(2026, 1, 1, tzinfo=UTC)}, "BadOutput: the handler's result cannot be sent: ['at'] is"),
        (lambda: {1: 2}, "BadOutput: the handler's result cannot be sent: it has the key 1"),
    ],
)
def test_an_answer_that_cannot_be_sent_fails_as_it_does_in_production(answer: Callable[[], Any], error: str) -> None:
    def pay(context: Context, command: Any) -> Any:
        return answer()

    story = given(ORDER, handlers={**dict.fromkeys(_commands(), _nothing), "cmd.pay": pay}, data={"amount": 1})
    story.run()
    story.expect(state="FAILED", attempts={"cmd.pay": 1}, undone=["pay", "reserve"], error=error)


class NoSeat(Permanent):
    """A kind of failure of an author's own that does not call our `__init__`."""

    def __init__(self, row: int) -> None:
        self.row = row


def test_a_verdict_of_the_authors_own_kind_counts_as_it_does_in_production() -> None:
    async def pay(context: Context, command: Any) -> None:
        raise NoSeat(3)

    story = given(ORDER, handlers={**dict.fromkeys(_commands(), _nothing), "cmd.pay": pay}, data={"amount": 1})
    story.run()
    story.expect(state="FAILED", attempts={"cmd.pay": 1}, error="NoSeat: 3")


def test_a_mistake_of_the_handler_is_not_tried_again() -> None:
    async def pay(context: Any, command: Any) -> None:
        context.log("paid")

    story = given(ORDER, handlers={**dict.fromkeys(_commands(), _nothing), "cmd.pay": pay}, data={"amount": 1})
    story.run()
    story.expect(state="FAILED", attempts={"cmd.pay": 1}, error="BadCall: context.log(…) is for jobs")


def test_a_step_that_asks_for_a_person_and_gets_an_answer() -> None:
    story = order()
    story.when("cmd.pay").holds("the amount is over the limit").times(1)
    story.run()
    story.expect(state="PAYING", blocker="held", error="the amount is over the limit", undone=[])
    story.retry(data={"amount": 7}).run()
    story.expect(state="COMPLETED", blocker=None, attempts={"cmd.pay": 2}, data={"amount": 7, "paid": 7})


def test_a_handler_that_asks_for_a_person() -> None:
    async def look(context: Context, command: Command) -> None:
        raise Hold("look at it", unsure=True)

    handlers: dict[str, Any] = {"cmd.reserve": orders.reserve, "cmd.free": orders.free, "cmd.ship": orders.ship}
    handlers |= {"cmd.pay": look, "cmd.refund": orders.refund}
    story = given(ORDER, handlers=handlers, data={"amount": 12})
    story.run()
    story.expect(state="PAYING", blocker="held", error="look at it")
    story.cancel().run()
    story.expect(state="FAILED", undone=["pay", "reserve"])


def test_a_person_who_is_asked_survives_every_crash() -> None:
    story = order()
    story.when("cmd.pay").holds().times(1)
    story.run()
    story.retry(data={"amount": 3}).run()
    story.crash_everywhere(state="COMPLETED", fresh=PROVIDER.empty)
