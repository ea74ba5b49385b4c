"""Does a copy of another installation's saga wait for a person, and then go on with what it waited for?"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from orchestrix import Job, Saga
from orchestrix.saga.actions.apply import allowed
from orchestrix.saga.actions.clone import blocked_clone
from orchestrix.saga.actions.requests import SagaAction
from orchestrix.saga.state import CLONED
from tests.unit.sagas.builders import step
from tests.unit.sagas.runs import AGAIN, TRIP, Run

TIMED = replace(TRIP, timeout=timedelta(seconds=60))


def park(run: Run) -> Run:
    """The same instance in the copy, a day later."""
    run.passes(86_400)
    run._keep(blocked_clone(run.instance, run.now))
    assert (run.instance.blocker, run.instance.wake_at, run.instance.wake_reason) == (CLONED, None, None)
    return run


def bare(run: Run) -> Run:
    """The same where nothing was kept of what it waited for."""
    run.passes(86_400)
    run.instance = replace(run.instance, blocker=CLONED, wake_at=None, wake_reason=None)
    return run


@pytest.mark.parametrize("how", [park, bare])
def test_it_goes_on_with_its_command(how: object) -> None:
    run = how(Run(TRIP, "flight"))  # type: ignore[operator]
    command = run.instance.command_id
    run.asks(SagaAction.RESUME)
    assert run.rows[-1] == ("NOTICING", "NOTICING", "resume: because")
    assert (run.instance.blocker, run.instance.wake_reason, run.wait) == (None, "deadline", 60)
    assert (run.sent[-1].id, run.sent[-1].type) == (command, "cmd.notice")
    run.done("notice")
    assert run.state == "SLEEPING"


def test_it_is_told_so() -> None:
    run = park(Run())
    assert run.rows[-1][2] == "cloned: this database is a copy; the original continues the work"


def test_what_can_be_done() -> None:
    run = park(Run())
    assert set(allowed(run.saga, run.instance)) == {
        SagaAction.RESUME,
        SagaAction.EDIT,
        SagaAction.CANCEL,
        SagaAction.TERMINATE,
    }
    run.refused(SagaAction.RETRY)
    run.refused(SagaAction.SKIP)
    run.refused(SagaAction.PAUSE)


def test_what_the_other_installation_hears_is_none_of_it() -> None:
    run = park(Run())
    assert run.done("flight") == run.fails() == run.fails(AGAIN) == "cloned"


def test_what_waited_for_its_next_try_waits_on() -> None:
    run = Run()
    run.fails(AGAIN)
    rest = run.wait
    assert rest
    park(run)
    run.asks(SagaAction.RESUME)
    assert (run.instance.wake_reason, run.wait, run.types) == ("retry", rest, ["flight"])
    run.expires()
    assert run.types == ["flight", "flight"]


def test_the_run_s_own_time_stands_still() -> None:
    run = park(Run(TIMED, "flight"))
    run.passes(1000)
    run.asks(SagaAction.RESUME)
    assert run.instance.deadline_at == run.now + timedelta(seconds=59)


def test_where_nothing_is_known_of_it_it_begins_anew() -> None:
    run = bare(Run(TIMED))
    run.instance = replace(run.instance, updated_at=run.now)
    run.asks(SagaAction.RESUME)
    assert run.instance.deadline_at == run.now + timedelta(seconds=60)


@pytest.mark.parametrize("how", [park, bare])
def test_it_is_given_up(how: object) -> None:
    """Nobody here has its command, so nobody is waited for; what it has done is not known."""
    run = how(Run(TRIP, "flight", "notice"))  # type: ignore[operator]
    run.asks(SagaAction.CANCEL)
    assert (run.state, run.instance.progress.awaited) == ("COMPENSATING", None)
    if how is bare:
        run.undone("hotel")
    run.undone("flight")
    assert run.state == "FAILED"


def test_what_was_never_sent_is_not_undone() -> None:
    run = Run()
    run.fails(AGAIN)
    park(run)
    run.asks(SagaAction.CANCEL)
    assert (run.state, run.types) == ("FAILED", ["flight"])


def test_it_is_ended() -> None:
    run = park(Run(TRIP, "flight"))
    run.asks(SagaAction.TERMINATE)
    assert (run.state, run.instance.progress.left) == ("FAILED", ("flight",))


@pytest.mark.parametrize("verb", [SagaAction.RESUME, SagaAction.CANCEL])
@pytest.mark.parametrize("how", [park, bare])
def test_what_was_being_undone_goes_on_with_that(how: object, verb: SagaAction) -> None:
    run = Run(TRIP, "flight")
    run.fails()
    how(run)  # type: ignore[operator]
    run.asks(verb)
    assert (run.state, run.types[-1], run.wait) == ("COMPENSATING", "drop-flight", 20)
    assert run.rows[-1][2] == f"{verb.value}: because"
    run.undone("flight")
    assert run.state == "FAILED"


def test_a_cancelled_one_waits_for_no_answer_any_more() -> None:
    run = Run(TRIP, "flight", "notice")
    run.asks(SagaAction.CANCEL)
    park(run)
    run.asks(SagaAction.RESUME)
    assert run.wait == 0
    run.expires()
    assert run.types[-1] == "drop-hotel"


def test_an_undo_that_had_failed_is_that_again() -> None:
    run = Run(TRIP, "flight")
    run.fails()
    run.fails()
    assert run.instance.blocker == "undo_failed"
    run.instance = replace(run.instance, blocker=CLONED)
    run.asks(SagaAction.RESUME)
    assert (run.state, run.instance.blocker) == ("COMPENSATION_FAILED", "undo_failed")
    run.asks(SagaAction.RETRY)
    assert run.types[-1] == "drop-flight"


@pytest.mark.parametrize("how", [park, bare])
def test_its_job_is_put_down_here(how: object) -> None:
    run = how(Run(Saga("x", steps=(step(command="", job=Job("report")),))))  # type: ignore[operator]
    acted = run.asks(SagaAction.RESUME)
    assert acted.command is not None
    assert (acted.command.job, run.instance.wake_reason) == (Job("report"), "job")


def test_its_data_can_be_changed_first() -> None:
    run = park(Run(data={"amount": 1}))
    run.asks(SagaAction.EDIT, patch={"amount": 2})
    assert run.instance.blocker == CLONED
    run.asks(SagaAction.RESUME)
    assert run.sent[-1].data == {"amount": 2}
