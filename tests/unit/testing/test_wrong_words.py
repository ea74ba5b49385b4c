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
    (lambda: given(cast(Any, "order")), r"given\(saga='order'\): expected a Saga"),
    (lambda: given(ORDER, data=cast(Any, [1])), r"given\(data=\[1\]\): expected a mapping or None, e.g. data=\{"),
    (
        lambda: given(ORDER, data=DATA, key=cast(Any, 5)),
        r'expected a string of 1 to 200 characters .*, e.g. key="story"',
    ),
    (lambda: given(ORDER, data=DATA, key=""), r"given\(key=''\): expected a string of 1 to 200 characters"),
    (lambda: given(ORDER, data={**DATA, "at": {1}}), r"given\(data=…\) is not JSON: \['at'\] is a set"),
    (lambda: given(ORDER, data=DATA, handlers={"cmd.pay": cast(Any, 5)}), "5 is not a function"),
    (lambda: given(ORDER, data=DATA, handlers={"cmd.pay": cast(Any, len)}), "must take two arguments"),
    (lambda: story().skip({"at": {1}}), r"skip\(output=…\) is not JSON: \['at'\] is a set"),
    (lambda: story().edit({1: 2}), r"edit\(patch=…\) is not JSON: it has the key 1"),  # type: ignore[dict-item]
    (lambda: story().cancel(""), r"cancel\(reason=''\): expected a non-empty reason"),
    (lambda: story().when("cmd.pay").succeeds({"at": {1}}), r"succeeds\(output=…\) is not JSON: \['at'\] is a set"),
    (lambda: story().when("cmd.pay").fails("Busy").times(0), r"times\(tries=0\): expected a whole number from 1"),
    (lambda: story().when("cmd.pay").takes(1e300), "is not a duration: .* from 0 to ten years"),
    (lambda: story().crash(after="cmd.pay", nth=0), r"crash\(nth=0\): expected a whole number from 1"),
    (lambda: given(), r"given\(\): saga is missing: write given\(ORDER, handlers=orders, data=\{"),  # type: ignore[call-arg]
    (lambda: given(ORDER, handler=[]), r"unknown argument handler=; did you mean handlers=\?"),  # type: ignore[call-arg]
    (lambda: given(ORDER, []), "it takes one argument without a name, not 2"),  # type: ignore[call-arg]
    (lambda: story().when("cmd.pay").fails(), r"fails\(\): type is missing: write .fails\("),  # type: ignore[call-arg]
    (lambda: story().crash("cmd.pay"), "it takes no arguments without a name, not 1"),  # type: ignore[call-arg]
    (
        lambda: story().crash_everywhere(fresh=cast(Any, 5)),
        r"\(fresh=5\): expected a function or None",
    ),
    (
        lambda: story().crash_everywhere(may_differ=["states"]),
        r"undone, blocker or fields of the data \(data.seat\)",
    ),
    (lambda: story().crash_everywhere(may_differ=["data."]), r"expected a list of state"),
    (lambda: story().crash_everywhere(may_differ=cast(Any, [5])), r"expected a list of state"),
    (lambda: story().crash_everywhere(may_differ="data"), r"\(may_differ='data'\): expected a list of state"),
    (lambda: story().tries("cmd.payed"), r"saga 'order' has no command cmd.payed; it has cmd.reserve"),
    (lambda: between("5s"), r"between\('5s'\): high is missing: write between"),  # type: ignore[call-arg]
    (lambda: between("5s", "1s"), r"between\('5s', '1s'\): the first must not exceed the second"),
    (lambda: given(ORDER, data=DATA, seed=cast(Any, "x")), "expected a whole number"),
    (lambda: given(ORDER, data=DATA, handlers=cast(Any, 5)), "5 is not a handler: give functions with @handles"),
    (lambda: given(ORDER, data=DATA, handlers=cast(Any, "orders")), "'orders' is not a handler"),
    (lambda: given(ORDER, data=DATA, handlers=[cast(Any, 5)]), "5 is not a handler"),
    (lambda: story().when("cmd.pay").fails("Busy", retryable=cast(Any, "no")), "expected True or False"),
    (lambda: story().when("cmd.pay").fails("Busy", retry_after=-1), "-1 is not a duration"),
    (
        lambda: story().when("cmd.pay").succeeds(cast(Any, [1])),
        r"succeeds\(output=\[1\]\): expected a mapping or None",
    ),
    (lambda: story().when("cmd.pay").fails("Busy").times(cast(Any, "2")), "expected a whole number from 1"),
    (lambda: story().when("cmd.pay").takes(cast(Any, None)), "None is not a duration: write 500ms"),
    (lambda: story().when("cmd.pay").takes(float("nan")), "nan is not a duration"),
    (lambda: story().when("cmd.pay").takes(float("inf")), "inf is not a duration"),
    (lambda: story().crash(after="cmd.pay", nth=cast(Any, "1")), "expected a whole number from 1, e.g. nth=1"),
    (lambda: story().crash(after=cast(Any, ["cmd.pay"])), "expected a string or None"),
    (lambda: story().crash(after="cmd.pay", back_after=cast(Any, {})), "{} is not a duration"),
    (lambda: story().run(limit=cast(Any, None)), "None is not a duration"),
    (lambda: story().cancel(cast(Any, 5)), r"cancel\(reason=5\): expected a non-empty reason"),
    (lambda: story().skip(cast(Any, [1])), r"skip\(output=\[1\]\): expected a mapping or None"),
    (lambda: story().edit(cast(Any, [1])), r"edit\(patch=\[1\]\): expected a mapping"),
    (lambda: between(cast(Any, None), 5), "None is not a duration"),
    (lambda: expected(undone="pay"), r"expect\(undone='pay'\): expected a list of strings, e.g. undone=\['pay'\]"),
    (lambda: expected(path=5), "expected a list of strings"),
    (lambda: expected(attempts=3), "expected a mapping"),
    (lambda: expected(data=[1]), "expected a mapping"),
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
        ({"payload": [1]}, r"given_job\(payload=\[1\]\): expected a mapping or None"),
        ({"payload": "x"}, "expected a mapping or None"),
        ({"payload": {"at": {1}}}, r"given_job\(payload=…\) is not JSON: \['at'\] is a set"),
        ({"attempt": "1"}, "expected a whole number from 1, e.g. attempt=1"),
        ({"timout": 1}, r"unknown argument timout=; did you mean timeout=\?: write given_job\("),
        ({"attempt": 0}, "expected a whole number from 1"),
        ({"attempt": 10**40}, "expected a whole number from 1"),
        ({"timeout": 10**400}, "is not a duration"),
        ({"key": " "}, "a string of 1 to 200 characters"),
        ({"timeout": []}, r"\[\] is not a duration"),
        ({"key": 5}, "a string of 1 to 200 characters"),
        ({"seed": "x"}, "expected a whole number"),
    ],
)
def test_a_story_of_a_job_too(talk: Any, wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises((ConfigError, Invalid), match=sentence):
        given_job(talk, **wrong)


def test_what_happens_to_a_job_too(talk: Any) -> None:
    told = given_job(talk).run()
    told.expect(result={"payload": {}}, logs=["hello"])
    with pytest.raises(ConfigError, match=r"expected a list of strings, e.g. logs=\['hello'\]"):
        told.expect(logs="hello")
    with pytest.raises(ConfigError, match=r"worker_stops\(after=5\): expected a string or None"):
        given_job(talk).worker_stops(after=cast(Any, 5))
    for wrong in (
        {"after": 5},
        {"percent": "50"},
        {"percent": 500},
        {"at": "x"},
        {"reason": 5, "at": 1},
        {"reason": "", "at": 1},
    ):
        with pytest.raises((ConfigError, Invalid), match=r"expected |is not a duration"):
            given_job(talk).cancel(**cast(Any, wrong))
