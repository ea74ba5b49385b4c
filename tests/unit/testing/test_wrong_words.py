"""Is a story that was told in wrong words refused where they are written, with what to write instead?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from orchestrix import JobContext, job
from orchestrix.errors import ConfigError, Invalid
from orchestrix.testing import Story, between, given, given_job
from orchestrix.testing.expectations import Ending, differences
from orchestrix.worker.jobs.functions import registered_jobs
from tests.unit.testing.orders import ORDER

DATA = {"film": "Metropolis"}


def story() -> Story:
    return given(ORDER, data=DATA)


def ending(**more: Any) -> Ending:
    fields: dict[str, Any] = {"state": "FAILED", "blocker": None, "data": {}, "path": (), "commands": (), "undone": ()}
    return Ending(**fields, attempts={}, elapsed=1.0, error="", **more)


def expected(**wanted: Any) -> list[str]:
    return list(differences(ending(), cast(Any, wanted)))


WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: given(cast(Any, "order")), r"given\(saga='order'\): a Saga is wanted"),
    (lambda: given(ORDER, data=cast(Any, [1])), r"given\(data=\[1\]\): a mapping or None is wanted, as data=\{"),
    (lambda: given(ORDER, data=DATA, key=cast(Any, 5)), r'a text of 1 to 200 characters .*is wanted, as key="story"'),
    (lambda: given(ORDER, data=DATA, key=""), r"given\(key=''\): a text of 1 to 200 characters"),
    (lambda: given(ORDER, data={**DATA, "at": {1}}), r"given\(data=…\) is no JSON: \['at'\] is a set"),
    (lambda: given(ORDER, data=DATA, handlers={"cmd.pay": cast(Any, 5)}), "5 is no function"),
    (lambda: given(ORDER, data=DATA, handlers={"cmd.pay": cast(Any, len)}), "must take two arguments"),
    (lambda: story().skip({"at": {1}}), r"skip\(output=…\) is no JSON: \['at'\] is a set"),
    (lambda: story().edit({1: 2}), r"edit\(patch=…\) is no JSON: it has the key 1"),  # type: ignore[dict-item]
    (lambda: story().cancel(""), r"cancel\(reason=''\): a reason in words is wanted"),
    (lambda: story().when("cmd.pay").succeeds({"at": {1}}), r"succeeds\(output=…\) is no JSON: \['at'\] is a set"),
    (lambda: story().when("cmd.pay").fails("Busy").times(0), r"times\(tries=0\): a whole number from 1 on is wanted"),
    (lambda: story().when("cmd.pay").takes(1e300), "is no length of time: .* from 0 to ten years"),
    (lambda: story().crash(after="cmd.pay", nth=0), r"crash\(nth=0\): a whole number from 1 on is wanted"),
    (lambda: given(), r"given\(\): saga is missing: write given\(ORDER, handlers=orders, data=\{"),  # type: ignore[call-arg]
    (lambda: given(ORDER, handler=[]), r"it takes no handler=, perhaps handlers= is meant"),  # type: ignore[call-arg]
    (lambda: given(ORDER, []), "it takes one argument without a name, not 2"),  # type: ignore[call-arg]
    (lambda: story().when("cmd.pay").fails(), r"fails\(\): type is missing: write .fails\("),  # type: ignore[call-arg]
    (lambda: story().crash("cmd.pay"), "it takes no arguments without a name, not 1"),  # type: ignore[call-arg]
    (
        lambda: story().crash_everywhere(fresh=cast(Any, 5)),
        r"\(fresh=5\): a function or None is wanted",
    ),
    (
        lambda: story().crash_everywhere(may_differ=["states"]),
        r"undone, blocker or a field of the data, as data.seat, is",
    ),
    (lambda: story().crash_everywhere(may_differ=["data."]), r"a list of what need not be the same, out of state"),
    (lambda: story().crash_everywhere(may_differ=cast(Any, [5])), r"a list of what need not be the same, out of state"),
    (lambda: story().crash_everywhere(may_differ="data"), r"\(may_differ='data'\): a list of what need not be"),
    (lambda: story().tries("cmd.payed"), r"saga 'order' has no command cmd.payed: it has cmd.reserve"),
    (lambda: between("5s"), r"between\('5s'\): high is missing: write between"),  # type: ignore[call-arg]
    (lambda: between("5s", "1s"), r"between\('5s', '1s'\): no time is so: write the shorter one first"),
    (lambda: given(ORDER, data=DATA, seed=cast(Any, "x")), "a whole number is wanted"),
    (lambda: given(ORDER, data=DATA, handlers=cast(Any, 5)), "5 is no handler: give functions with @handles"),
    (lambda: given(ORDER, data=DATA, handlers=cast(Any, "orders")), "'orders' is no handler"),
    (lambda: given(ORDER, data=DATA, handlers=[cast(Any, 5)]), "5 is no handler"),
    (lambda: story().when("cmd.pay").fails("Busy", retryable=cast(Any, "no")), "True or False is wanted"),
    (lambda: story().when("cmd.pay").fails("Busy", retry_after=-1), "-1 is no length of time"),
    (
        lambda: story().when("cmd.pay").succeeds(cast(Any, [1])),
        r"succeeds\(output=\[1\]\): a mapping or None is wanted",
    ),
    (lambda: story().when("cmd.pay").fails("Busy").times(cast(Any, "2")), "a whole number from 1 on is wanted"),
    (lambda: story().when("cmd.pay").takes(cast(Any, None)), "None is no length of time: write 500ms"),
    (lambda: story().when("cmd.pay").takes(float("nan")), "nan is no length of time"),
    (lambda: story().when("cmd.pay").takes(float("inf")), "inf is no length of time"),
    (lambda: story().crash(after="cmd.pay", nth=cast(Any, "1")), "a whole number from 1 on is wanted, as nth=1"),
    (lambda: story().crash(after=cast(Any, ["cmd.pay"])), "a text or None is wanted"),
    (lambda: story().crash(after="cmd.pay", back_after=cast(Any, {})), "{} is no length of time"),
    (lambda: story().run(limit=cast(Any, None)), "None is no length of time"),
    (lambda: story().cancel(cast(Any, 5)), r"cancel\(reason=5\): a reason in words is wanted"),
    (lambda: story().skip(cast(Any, [1])), r"skip\(output=\[1\]\): a mapping or None is wanted"),
    (lambda: story().edit(cast(Any, [1])), r"edit\(patch=\[1\]\): a mapping is wanted"),
    (lambda: between(cast(Any, None), 5), "None is no length of time"),
    (lambda: expected(undone="pay"), r"expect\(undone='pay'\): a list of texts is wanted, as undone=\['pay'\]"),
    (lambda: expected(path=5), "a list of texts is wanted"),
    (lambda: expected(attempts=3), "a mapping is wanted"),
    (lambda: expected(data=[1]), "a mapping is wanted"),
]


@pytest.mark.parametrize(("wrong", "sentence"), WRONG)
def test_a_wrong_word_is_refused_with_the_right_one(wrong: Callable[[], object], sentence: str) -> None:
    with pytest.raises((ConfigError, Invalid), match=sentence):
        wrong()


@pytest.fixture
def talk() -> Any:
    """A job that says one line."""
    before = list(registered_jobs)

    @job("talk")
    async def talk(context: JobContext) -> dict[str, Any]:
        await context.log("hello")
        return {"payload": context.payload}

    yield talk
    registered_jobs[:] = before


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"payload": [1]}, r"given_job\(payload=\[1\]\): a mapping or None is wanted"),
        ({"payload": "x"}, "a mapping or None is wanted"),
        ({"payload": {"at": {1}}}, r"given_job\(payload=…\) is no JSON: \['at'\] is a set"),
        ({"attempt": "1"}, "a whole number from 1 on is wanted, as attempt=1"),
        ({"timout": 1}, r"it takes no timout=, perhaps timeout= is meant: write given_job\("),
        ({"attempt": 0}, "a whole number from 1 on is wanted"),
        ({"attempt": 10**40}, "a whole number from 1 on is wanted"),
        ({"timeout": 10**400}, "is no length of time"),
        ({"key": " "}, "a text of 1 to 200 characters"),
        ({"timeout": []}, r"\[\] is no length of time"),
        ({"key": 5}, "a text of 1 to 200 characters"),
        ({"seed": "x"}, "a whole number is wanted"),
    ],
)
def test_a_story_of_a_job_too(talk: Any, wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises((ConfigError, Invalid), match=sentence):
        given_job(talk, **wrong)


def test_what_happens_to_a_job_too(talk: Any) -> None:
    told = given_job(talk).run()
    told.expect(result={"payload": {}}, logs=["hello"])
    with pytest.raises(ConfigError, match=r"a list of texts is wanted, as logs=\['hello'\]"):
        told.expect(logs="hello")
    with pytest.raises(ConfigError, match=r"worker_stops\(after=5\): a text or None is wanted"):
        given_job(talk).worker_stops(after=cast(Any, 5))
    for wrong in (
        {"after": 5},
        {"percent": "50"},
        {"percent": 500},
        {"at": "x"},
        {"reason": 5, "at": 1},
        {"reason": "", "at": 1},
    ):
        with pytest.raises((ConfigError, Invalid), match=r"is wanted|no length of time"):
            given_job(talk).cancel(**cast(Any, wrong))
