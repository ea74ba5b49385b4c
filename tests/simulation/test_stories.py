"""Does a story find every crash that an author's handlers do not survive, and no other?"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

from orchestrix import COMPLETED, Compensation, Context, NothingToUndo, Permanent, Saga, Step
from orchestrix.errors import ConfigError
from orchestrix.testing import Story, given
from tests.unit.testing import orders
from tests.unit.testing.orders import PROVIDER

SALE = Saga(
    name="sale",
    steps=(
        Step("pay", "PAYING", "cmd.pay", "evt.paid", "SHIPPING", Compensation("cmd.refund", "evt.refunded")),
        Step("ship", "SHIPPING", "cmd.ship", "evt.shipped", COMPLETED, NothingToUndo("it is gone")),
    ),
)


@pytest.fixture(autouse=True)
def provider() -> Iterator[None]:
    """Nobody is charged yet."""
    PROVIDER.empty()
    yield
    PROVIDER.empty()


def sale() -> Story:
    """A sale for twelve."""
    return given(SALE, handlers=orders, data={"amount": 12})


def test_good_handlers_survive_every_crash() -> None:
    def once() -> bool:
        return list(PROVIDER.charges.values()) == [12]

    story = sale()
    story.when("cmd.ship").fails("Busy").times(1)
    places = [str(place) for place in story.crash_everywhere(fresh=PROVIDER.empty, check=once, state="COMPLETED")]
    work = ["before cmd.pay", "during cmd.pay", "after cmd.pay"]
    rest = ["before SHIPPING", "after SHIPPING", "after cmd.pay sent", "after evt.paid", "after outbox"]
    assert {*work, *rest, "after SHIPPING, time 2", "before COMPLETED", "after COMPLETED"} <= set(places)


def test_every_crash_on_the_way_back() -> None:
    story = sale()
    story.when("cmd.ship").fails("NoStock", retryable=False)
    story.crash_everywhere(fresh=PROVIDER.empty, check=lambda: not PROVIDER.charges, state="FAILED", undone=["pay"])


def refused_for_good() -> Story:
    """A sale whose payment is refused, which leaves nothing to undo, or so its worker says."""

    async def pay(context: Context, command: Any) -> None:
        await asyncio.sleep(0.1)
        raise Permanent("NoMoney", "the card is empty")

    handlers = {"cmd.pay": pay, "cmd.refund": orders.refund, "cmd.ship": orders.ship}
    return given(SALE, handlers=handlers, data={"amount": 12})


def test_a_step_that_fails_for_good_may_be_undone_too_where_a_crash_leaves_doubt() -> None:
    refused_for_good().run().expect(state="FAILED", undone=[])
    places = refused_for_good().crash_everywhere(state="FAILED", undone=[], check=lambda: not PROVIDER.charges)
    assert "during cmd.pay" in [str(place) for place in places]


def test_who_wants_it_told_is_told_of_such_an_undo() -> None:
    with pytest.raises(AssertionError, match=r"during cmd\.pay: undone: \['pay'\], expected \[\]"):
        refused_for_good().crash_everywhere(may_differ=(), state="FAILED")


def test_a_step_that_was_not_in_doubt_must_be_undone_alike() -> None:
    story = sale()
    story.when("cmd.ship").fails("NoStock", retryable=False)
    with pytest.raises(AssertionError, match=r"without a crash:\nundone: \['pay'\], expected \[\]"):
        story.crash_everywhere(fresh=PROVIDER.empty, undone=[])


def test_what_may_differ_need_not_be_the_same() -> None:
    seen: list[str] = []

    async def pay(context: Context, command: Any) -> dict[str, int]:
        seen.append(command.id)
        return {"charges": len(seen)}

    handlers = {"cmd.pay": pay, "cmd.refund": orders.refund, "cmd.ship": orders.ship}
    places = given(SALE, handlers=handlers).crash_everywhere(fresh=seen.clear, may_differ=["data"])
    assert "after cmd.pay sent" in [str(place) for place in places]


class Mail(BaseModel):
    """What is known of a mail."""

    amount: int = 12
    seen: dict[str, int] = {}
    to: str = "ada"


TYPED = replace(SALE, data=Mail)


def counted(saga: Saga) -> tuple[Story, list[str]]:
    """A sale whose payment tells how often it was asked for, in two fields, one within another."""
    seen: list[str] = []

    async def pay(context: Context, command: Any) -> dict[str, Any]:
        seen.append(command.id)
        return {"amount": len(seen), "seen": {"charges": len(seen), "kind": 1}}

    handlers = {"cmd.pay": pay, "cmd.refund": orders.refund, "cmd.ship": orders.ship}
    return given(saga, handlers=handlers), seen


@pytest.mark.parametrize("saga", [SALE, TYPED])
def test_single_fields_may_differ(saga: Saga) -> None:
    story, seen = counted(saga)
    places = story.crash_everywhere(fresh=seen.clear, may_differ=["undone", "data.amount", "data.seen.charges"])
    assert "after cmd.pay sent" in [str(place) for place in places]


@pytest.mark.parametrize(
    ("may_differ", "says"),
    [
        (["data.amount"], r"after cmd\.pay: data\['seen'\]: "),
        (["data.seen"], r"after cmd\.pay: data\['amount'\]: 2, expected 1"),
        (["data.amount", "data.seen.kind"], r"after cmd\.pay: data\['seen'\]: \{'charges': 2\}, expected"),
    ],
)
def test_all_other_fields_must_be_the_same(may_differ: list[str], says: str) -> None:
    story, seen = counted(TYPED)
    with pytest.raises(AssertionError, match=says):
        story.crash_everywhere(fresh=seen.clear, may_differ=may_differ)


def test_a_field_that_the_data_has_not_is_refused() -> None:
    story, _ = counted(TYPED)
    with pytest.raises(ConfigError, match="the data of saga 'sale' has no field 'amuont': it has amount, seen, to"):
        story.crash_everywhere(may_differ=["data.amuont"])


def test_runs_and_words_are_repeated_with_each_crash() -> None:
    story = sale().run(until="cmd.pay").cancel().run()
    story.expect(state="FAILED")
    places = story.crash_everywhere(fresh=PROVIDER.empty, check=lambda: not PROVIDER.charges, state="FAILED")
    assert "after COMPENSATING" in [str(place) for place in places]


def test_a_charge_without_a_key_is_found() -> None:
    def once() -> None:
        assert sum(PROVIDER.calls.values()) == 1, f"charged {sum(PROVIDER.calls.values())} times"

    with pytest.raises(AssertionError) as found:
        sale().crash_everywhere(fresh=PROVIDER.empty, check=once)
    first, second, *rest = str(found.value).splitlines()
    assert first.startswith("1 of ")
    assert second == "after cmd.pay: check: charged 2 times"
    assert any("worker  CRASH after cmd.pay" in line for line in rest)


def test_an_answer_that_counts_tries_is_found() -> None:
    seen: list[str] = []

    async def pay(context: Context, command: Any) -> dict[str, int]:
        seen.append(command.id)
        return {"charges": len(seen)}

    handlers = {"cmd.pay": pay, "cmd.refund": orders.refund, "cmd.ship": orders.ship}
    with pytest.raises(AssertionError, match=r"\nafter cmd\.pay: data\['charges'\]: 2, expected 1\n"):
        given(SALE, handlers=handlers).crash_everywhere(fresh=seen.clear)


def test_a_story_that_goes_wrong_without_a_crash() -> None:
    with pytest.raises(AssertionError, match="without a crash:\nstate: 'COMPLETED', expected 'FAILED'"):
        sale().crash_everywhere(state="FAILED")
