"""Is a part of a definition of the wrong type refused where it is written, with what to write instead?"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from orchestrix import Compensation, DefinitionError, Job, NothingToUndo, RetryPolicy, Saga, Step
from orchestrix.saga.validation.arguments import brief, called
from orchestrix.saga.validation.signatures import called_as
from tests.unit.sagas.builders import step

HALF_A_MINUTE = r"expected a timedelta, e.g. timeout=timedelta\(seconds=30\)"
PERHAPS = r"expected a timedelta or None, e.g. timeout=timedelta\(seconds=30\)"

WRONG: list[tuple[Callable[..., object], dict[str, Any], str]] = [
    (Job, {"name": "build", "timeout": 30}, rf"Job\('build', timeout=30\): {PERHAPS}"),
    (Job, {"name": "build", "timeout": "30"}, PERHAPS),
    (Job, {"name": 5}, r'Job\(name=5\): expected a string, e.g. name="5"'),
    (Job, {"name": "build", "queue": None}, r"queue=None\): expected a string"),
    (Job, {"name": "build", "retries": "3"}, r"retries='3'\): expected a whole number, e.g. retries=3"),
    (Job, {"name": "build", "retries": True}, "expected a whole number"),
    (RetryPolicy, {"attempts": "3"}, r"RetryPolicy\(attempts='3'\): expected a whole number, e.g. attempts=3"),
    (RetryPolicy, {"attempts": 2.0}, "expected a whole number, e.g. attempts=2"),
    (RetryPolicy, {"attempts": 10**40}, "the first attempt counts too, so use 1 to 1000"),
    (RetryPolicy, {"attempts": 0}, r"RetryPolicy\(attempts=0\): the first attempt counts too"),
    (RetryPolicy, {"attempts": 1001}, "use 1 to 1000"),
    (
        RetryPolicy,
        {"base": timedelta(-1)},
        r"RetryPolicy\(base=timedelta\(seconds=-86400\), cap=timedelta\(seconds=300\)\): ",
    ),
    (RetryPolicy, {"base": timedelta.max, "cap": timedelta.max}, "base must not exceed cap; both from 0 to ten years"),
    (RetryPolicy, {"base": 1}, r"base=timedelta\(seconds=1\)"),
    (RetryPolicy, {"cap": 1.5}, r"cap=timedelta\(seconds=1.5\)"),
    (RetryPolicy, {"never": "SoldOut"}, r"expected a tuple of strings, e.g. never=\('SoldOut',\)"),
    (RetryPolicy, {"never": (ValueError,)}, "expected a tuple of strings"),
    (Compensation, {"command": 5}, "expected a string"),
    (Compensation, {"event": None}, r"Compensation\(event=None\): expected a string"),
    (Compensation, {"timeout": 30}, HALF_A_MINUTE),
    (Compensation, {"timeout": None}, HALF_A_MINUTE),
    (Compensation, {"timeout": 10**4000}, HALF_A_MINUTE),
    (Compensation, {"retry": 3}, r"expected a RetryPolicy, e.g. retry=RetryPolicy\(attempts=3\)"),
    (Compensation, {"job": "untag"}, r"expected a Job, e.g. job=Job\('untag'\)"),
    (
        NothingToUndo,
        {"why": None},
        r'NothingToUndo\(why=None\): expected a non-empty reason, e.g. why="a sent mail cannot be recalled"',
    ),
    (NothingToUndo, {"why": ""}, r"NothingToUndo\(why=''\): expected a non-empty reason"),
    (NothingToUndo, {"why": " \n"}, "expected a non-empty reason"),
    (step, {"name": 5}, r"Step\(name=5\): expected a string"),
    (step, {"state": 5}, r"Step\('one', state=5\): expected a string"),
    (step, {"command": None}, "command=None.*: expected a string"),
    (step, {"event": 5}, "event=5.*: expected a string"),
    (step, {"then": None}, "then=None.*: expected a string"),
    (
        step,
        {"undo": "cmd.undo"},
        r'NothingToUndo, e.g. undo=Compensation\("cmd.…", "evt.…"\)',
    ),
    (step, {"timeout": 30}, rf"Step\('one', timeout=30\): {HALF_A_MINUTE}"),
    (step, {"retry": 3}, "expected a RetryPolicy"),
    (step, {"job": "x"}, r"Step\('one', job='x'\): expected a Job, e.g. job=Job\('x'\)"),
    (Saga, {"name": 5}, r"Saga\(name=5\): expected a string"),
    (Saga, {"steps": step()}, r"expected a tuple of steps, e.g. steps=\(Step\(…\), Step\(…\)\)"),
    (Saga, {"steps": None}, "expected a tuple of steps"),
    (Saga, {"steps": (step(), "two")}, "saga 'x': 'two' is not a step"),
    (Saga, {"immediate": ["A"]}, "expected a mapping of strings to strings"),
    (Saga, {"immediate": {"A": 5}}, "expected a mapping of strings to strings"),
    (Saga, {"data": dict}, "expected a subclass of pydantic's BaseModel"),
    (Saga, {"data": {}}, "expected a subclass of pydantic's BaseModel"),
    (Saga, {"version": "1"}, "expected a whole number, e.g. version=1"),
    (Saga, {"version": 0}, "the version must be from 1 to 2147483647"),
    (Saga, {"timeout": 30}, rf"Saga\('x', timeout=30\): {PERHAPS}"),
]


@pytest.mark.parametrize(("made", "wrong", "sentence"), WRONG)
def test_a_part_of_the_wrong_type_is_refused_where_it_is_written(
    made: Callable[..., object], wrong: dict[str, Any], sentence: str
) -> None:
    plain = {"name": "x", "steps": (step(),)} if made is Saga else {}
    with pytest.raises(DefinitionError, match=sentence) as refused:
        made(**(plain | wrong))
    assert "\n" not in str(refused.value)


def test_lists_are_as_good_as_tuples() -> None:
    assert RetryPolicy(never=["Gone"]).never == ("Gone",)  # type: ignore[arg-type]
    assert Saga("x", [step()]).steps == (step(),)  # type: ignore[arg-type]
    assert Saga("x", (one for one in [step()])).steps == (step(),)  # type: ignore[arg-type]
    assert Saga("x", {"first": step()}.values()).steps == (step(),)  # type: ignore[arg-type]


def test_a_jobs_name_is_that_of_the_api() -> None:
    decomposed = Job("cafe\u0301/tables: all")
    assert decomposed.name == "caf\u00e9/tables: all"
    build = Step("a", "A", job=decomposed, event="evt.a", then="COMPLETED", undo=NothingToUndo("nothing is left"))
    assert Saga("x", (build,)).steps == (build,)


CALLS: list[tuple[Callable[[], object], str]] = [
    (lambda: Saga("x"), r"Saga\('x'\): steps is missing: write Saga\(\"order\", steps=\(Step\(…\), Step\(…\)\)\)"),  # type: ignore[call-arg]
    (lambda: Saga(), r"Saga\(\): name and steps are missing: write Saga"),  # type: ignore[call-arg]
    (lambda: Step("s"), r"Step\('s'\): state is missing: write Step\("),  # type: ignore[call-arg]
    (lambda: step(timeuot=3), r"Step\(.*…\): unknown argument timeuot=; did you mean timeout=\?: write Step\("),
    (lambda: step(colour=3), r": unknown argument colour=: write Step\("),
    (lambda: Job(), r'Job\(\): name is missing: write Job\("build-image"\)'),  # type: ignore[call-arg]
    (lambda: Job("a", "b", None, 0, 5), r"it takes 4 arguments without a name, not 5"),  # type: ignore[arg-type, call-arg]
    (lambda: Job("a", name="b"), r"Job\('a', name='b'\): name was given more than once"),  # type: ignore[misc]
    (lambda: NothingToUndo(), r"NothingToUndo\(\): why is missing: write NothingToUndo\("),  # type: ignore[call-arg]
    (lambda: Compensation(cmd="cmd.a"), r"Compensation\(cmd='cmd.a'\): unknown argument cmd=; did you mean command="),  # type: ignore[call-arg]
    (lambda: RetryPolicy(tries=3), r"RetryPolicy\(tries=3\): unknown argument tries="),  # type: ignore[call-arg]
]


@pytest.mark.parametrize(("call", "sentence"), CALLS)
def test_arguments_that_are_missing_or_unknown_are_told_with_the_right_form(
    call: Callable[[], object], sentence: str
) -> None:
    with pytest.raises(DefinitionError, match=sentence) as refused:
        call()
    assert refused.value.__cause__ is refused.value.__context__ is None


def test_an_error_of_the_called_one_itself_stays_what_it_is() -> None:
    @called_as("halved(4)", DefinitionError)
    def halved(number: int) -> float:
        return len("x" * number) / 2

    assert halved(4) == 2
    assert halved.__name__ == "halved"
    with pytest.raises(TypeError, match="can't multiply"):
        halved("4")  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match=r"halved\(\): number is missing: write halved\(4\)"):
        halved()  # type: ignore[call-arg]


class Silent:
    def __repr__(self) -> str:
        raise ValueError("no")


async def counted() -> Any:
    yield 1


def test_values_are_told_on_one_line_and_kinds_with_their_article() -> None:
    assert brief("x" * 100) == "'" + "x" * 58 + "…"
    assert brief(type("A", (), {"__repr__": lambda _: "two\nlines"})()) == "two lines"
    assert brief([1, "two"]) == "[1, 'two']"
    assert (brief(Silent()), brief(10**5000)) == ("<Silent>", "<int>")
    values: list[Any] = [1, [], None, timedelta(0), counted()]
    assert [called(one) for one in values] == [
        "an int",
        "a list",
        "None",
        "a timedelta",
        "an async generator",
    ]
