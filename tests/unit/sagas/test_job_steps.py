"""Is a step that is a job checked, put down once, awaited for as long as the job takes, and let go?"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from orchestrix import COMPLETED, FAILED, Compensation, DefinitionError, Job, RetryPolicy, Saga, Step
from orchestrix.saga.actions.requests import SagaAction
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.commands import JOB_POLL_INTERVAL, NEVER, SagaTransition, job_at_work, job_cancel_cause
from orchestrix.saga.messages import StepError
from orchestrix.saga.state import DEADLINE, JOB, PAUSED, Instance
from orchestrix.saga.timeouts import TimerRescheduled
from tests.unit.sagas.builders import FIRST, LEAVES_NOTHING, ORDER, SECOND, THIRD, sent, step
from tests.unit.sagas.runs import Run

BUILD = Job("build-image", queue="builders", timeout=timedelta(hours=2), retries=3)
RELEASE = Saga(
    "release",
    (
        step("tag", "TAGGING", "BUILDING", undo=Compensation("cmd.untag", "evt.untagged")),
        Step(
            "build",
            "BUILDING",
            job=BUILD,
            event="evt.built",
            then="SHIPPING",
            undo=Compensation("cmd.drop", "evt.dropped"),
        ),
        step("ship", "SHIPPING"),
    ),
    data=ORDER.data,
)
LOST = StepError("WorkerLost", "its worker sends no heartbeats any more", retryable=False, unsure=True)
BROKEN = StepError("NoSpace", "disk full", retryable=False)


def building() -> Run:
    """A release whose job is at work."""
    return Run(RELEASE, "tag")


def job_step(**more: Any) -> Step:
    """A step that is a job, with other fields."""
    given: dict[str, Any] = {"job": BUILD, "event": "evt.built", "then": COMPLETED, "undo": LEAVES_NOTHING}
    return Step("build", "BUILDING", **(given | more))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"command": "cmd.build"}, "give either a job or the command cmd.build, not both"),
        ({"job": None}, "a command or a job is required: command='cmd.…' or job=Job('…')"),
        ({"retry": RetryPolicy(2)}, "give Job(retries=…) instead of retry="),
        ({"retry": RetryPolicy(2), "job": replace(BUILD, retries=0)}, "give Job(retries=…) instead of retry="),
        ({"timeout": timedelta(minutes=5)}, "give Job(timeout=…) instead of timeout="),
        ({"event": ""}, "event '' must be evt. and a name"),
        ({"event": "evt.stepFailed"}, "cannot be a success"),
        ({"job": Job("")}, "a job's name must have 1 to 200 code points, not 0"),
        ({"job": Job(" build")}, "a job's name must not begin or end with white space"),
        ({"job": Job("new\nline")}, "a job's name must not contain control characters"),
        ({"job": Job("build", queue="a b")}, "a job's queue must be letters"),
        ({"job": Job("build", timeout=timedelta(0))}, "timeout must be from 1 ms"),
        ({"job": Job("build", retries=-1)}, "retries must be from 0 to 1000"),
        ({"undo": None}, "undo is required"),
    ],
)
def test_a_job_step_that_contradicts_itself_is_refused(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        Saga("release", (job_step(**wrong),))
    assert sentence in str(refused.value)
    assert "step 'build'" in str(refused.value)


def test_the_same_time_may_be_said_twice() -> None:
    assert Saga("release", (job_step(timeout=timedelta(hours=2)),)).steps[0].job == BUILD


def test_a_job_has_no_command_and_its_saga_listens_for_its_event() -> None:
    catalog = Catalog([RELEASE])
    assert catalog.commands == ("cmd.tag", "cmd.untag", "cmd.drop", "cmd.ship")
    assert "evt.built" in catalog.events


def test_what_the_job_is_given() -> None:
    run = building()
    command = sent(run.sent[-1])
    assert (command.id, command.job) == (SECOND, BUILD)
    assert command.payload == {
        "saga": "release",
        "appId": 7,
        "appName": "billing",
        "step": "build",
        "attempt": 1,
        "idempotencyKey": "release:7:build:do",
        "effectKey": "release:7:build:do",
        "event": "evt.built",
        "data": {},
    }


def test_a_job_has_its_own_time_and_is_looked_after_meanwhile() -> None:
    run = building()
    assert (run.instance.wake_reason, run.wait) == (JOB, JOB_POLL_INTERVAL.total_seconds())
    for _ in range(100):  # eight hours
        assert isinstance(run.expires(), TimerRescheduled)
    assert (run.state, run.instance.wake_reason, run.wait) == ("BUILDING", JOB, JOB_POLL_INTERVAL.total_seconds())
    assert len(run.sent) == 2


def test_the_run_s_own_time_ends_also_where_a_job_is_at_it() -> None:
    run = Run(replace(RELEASE, timeout=timedelta(minutes=7)), "tag")
    before = run.instance
    assert isinstance(run.expires(), TimerRescheduled)
    assert run.wait is not None
    assert run.wait < 110
    assert isinstance(run.expires(), TimerRescheduled), "the last look, just before the end"
    assert isinstance(run.expires(), SagaTransition)
    assert (run.state, run.sent[-1].type) == ("COMPENSATING", "cmd.drop")
    assert job_cancel_cause(run.saga, before, run.instance) == SECOND


def test_the_result_becomes_the_data() -> None:
    run = building()
    run.done("build", data={"image": "sha256:1"})
    assert (run.state, run.instance.data, run.sent[-1].type) == ("SHIPPING", {"image": "sha256:1"}, "cmd.ship")
    assert run.rows[-1] == ("BUILDING", "SHIPPING", "evt.built")


def test_a_result_that_the_saga_refuses_fails_the_step() -> None:
    run = building()
    run.done("build", data={"amount": "many"})
    assert (run.state, run.sent[-1].type) == ("COMPENSATING", "cmd.drop")
    assert run.rows[-1][2].startswith("evt.stepFailed: BadOutput: the job's result does not fit: amount")


@pytest.mark.parametrize(("error", "undone"), [(BROKEN, "cmd.untag"), (LOST, "cmd.drop")])
def test_a_failed_job_is_no_more_tried_and_what_may_be_there_is_undone(error: StepError, undone: str) -> None:
    run = building()
    run.fails(error)
    assert (run.state, run.sent[-1].type) == ("COMPENSATING", undone)


def test_no_report_of_a_job_is_worth_another_try() -> None:
    run = building()
    run.fails(StepError("Busy", "later", retryable=True))
    assert run.state == "COMPENSATING"


def test_a_cancelled_saga_waits_for_its_job_to_end_however_long_that_takes() -> None:
    run = building()
    before = run.instance
    run.asks(SagaAction.CANCEL)
    assert job_cancel_cause(RELEASE, before, run.instance) == SECOND
    assert (run.instance.progress.awaited, run.instance.wake_reason) == ("build", JOB)
    assert job_at_work(RELEASE, run.instance) == SECOND
    assert isinstance(run.expires(), TimerRescheduled)
    run.fails(StepError("JobCancelled", "release 7: cancel: because", retryable=False, unsure=True))
    assert run.sent[-1].type == "cmd.drop"
    run.undone("build")
    run.undone("tag")
    assert run.state == FAILED


@pytest.mark.parametrize("verb", [SagaAction.TERMINATE, SagaAction.SKIP])
def test_a_job_that_is_passed_over_is_let_go(verb: SagaAction) -> None:
    run = building()
    before = run.instance
    run.asks(verb)
    assert job_cancel_cause(RELEASE, before, run.instance) == SECOND


def test_a_job_goes_on_while_its_saga_is_paused() -> None:
    run = building()
    before = run.instance
    run.asks(SagaAction.PAUSE)
    assert job_cancel_cause(RELEASE, before, run.instance) is None
    run.asks(SagaAction.RESUME)
    assert (run.sent[-1].id, run.instance.wake_reason) == (SECOND, JOB)
    run.fails(BROKEN)
    assert run.instance.progress.todo == ("tag",), "there was no other job that could have done something"


def test_the_job_of_a_step_that_begins_during_a_pause_is_put_down_after_it() -> None:
    run = Run(RELEASE)
    run.asks(SagaAction.PAUSE)
    run.done("tag")
    assert (run.state, run.instance.blocker, len(run.sent)) == ("BUILDING", PAUSED, 1)
    run.asks(SagaAction.RESUME)
    assert (sent(run.sent[-1]).job, run.instance.wake_reason, run.wait) == (
        BUILD,
        JOB,
        JOB_POLL_INTERVAL.total_seconds(),
    )


def test_other_data_need_another_job() -> None:
    run = building()
    before = run.instance
    run.asks(SagaAction.PAUSE)
    run.asks(SagaAction.EDIT, patch={"amount": 2})
    assert job_cancel_cause(RELEASE, before, run.instance) == SECOND
    run.asks(SagaAction.RESUME)
    assert (run.sent[-1].id, run.sent[-1].payload["attempt"]) == (THIRD, 2)


def test_a_run_that_begins_again_has_a_job_of_its_own() -> None:
    run = building()
    run.fails(BROKEN)
    run.undone("tag")
    run.asks(SagaAction.RETRY)
    run.done("tag")
    assert run.sent[-1].id not in (FIRST, SECOND)
    assert run.sent[-1].payload["attempt"] == 2


def test_a_person_s_deadline_ends_a_job_and_can_be_taken_back() -> None:
    run = building()
    run.asks(SagaAction.SET_DEADLINE, at=run.now + timedelta(seconds=90))
    assert (run.instance.wake_reason, run.wait) == (JOB, 79.0)
    run.asks(SagaAction.CANCEL_DEADLINE)
    assert (run.instance.wake_reason, run.wait) == (JOB, JOB_POLL_INTERVAL.total_seconds())
    run.asks(SagaAction.SET_DEADLINE, at=run.now + timedelta(seconds=90))
    assert isinstance(run.expires(), TimerRescheduled), "an end that was lost is told once more, and can still count"
    before = run.instance
    assert isinstance(run.expires(), SagaTransition)
    assert (run.state, job_cancel_cause(RELEASE, before, run.instance)) == ("COMPENSATING", SECOND)


def test_a_person_s_deadline_outlasts_a_pause() -> None:
    run = building()
    run.asks(SagaAction.SET_DEADLINE, at=run.now + timedelta(seconds=90))
    run.asks(SagaAction.PAUSE)
    run.asks(SagaAction.RESUME)
    assert (run.instance.wake_reason, run.wait) == (JOB, 78.0)
    assert not isinstance(run.expires(), SagaTransition)
    assert (run.instance.wake_reason, run.wait) == (DEADLINE, 10.0)


def test_a_person_s_deadline_lets_the_looks_go_on() -> None:
    run = building()
    end = run.now + timedelta(minutes=12)
    run.asks(SagaAction.SET_DEADLINE, at=end)
    looks = []
    while not isinstance(run.expires(), SagaTransition):
        assert (run.instance.given, run.instance.limit) == (end, end)
        looks.append((run.instance.wake_reason, run.wait))
    assert looks == [(JOB, 300.0), (JOB, pytest.approx(110.0, abs=3)), (DEADLINE, 10.0)]
    assert (run.state, run.now) == ("COMPENSATING", end)
    assert run.instance.given is None


@pytest.mark.parametrize("awaited", [False, True], ids=["a step", "a step of a cancelled saga"])
def test_who_takes_back_a_deadline_takes_no_look_back(awaited: bool) -> None:
    run = building()
    if awaited:
        run.asks(SagaAction.CANCEL)
    run.asks(SagaAction.SET_DEADLINE, at=run.now + timedelta(seconds=90))
    run.asks(SagaAction.CANCEL_DEADLINE)
    assert (run.instance.wake_reason, run.wait, run.instance.given) == (JOB, JOB_POLL_INTERVAL.total_seconds(), None)
    assert run.asks(SagaAction.CANCEL_DEADLINE).history == ()
    assert not isinstance(run.expires(), SagaTransition)


def test_a_person_s_long_deadline_is_put_off_and_outlasts_a_pause() -> None:
    run = building()
    end = run.now + timedelta(hours=2)
    run.asks(SagaAction.SET_DEADLINE, at=end)
    assert run.asks(SagaAction.SET_DEADLINE, at=end).history == ()
    run.asks(SagaAction.SET_DEADLINE, extend_by=timedelta(hours=1))
    assert run.instance.given == end + timedelta(hours=1)
    held = run.asks(SagaAction.PAUSE).instance
    assert held.given is None
    run.asks(SagaAction.RESUME)
    assert (run.instance.given, run.instance.wake_reason) == (end + timedelta(hours=1, seconds=1), JOB)
    assert not run.instance.progress.unanswered, "there is no second copy of a job"


def test_a_person_s_deadline_that_passed_while_nobody_looked_ends_the_job() -> None:
    run = building()
    run.asks(SagaAction.SET_DEADLINE, at=run.now + timedelta(minutes=6))
    run.now += timedelta(minutes=30)
    assert isinstance(run.expires(), SagaTransition)


def test_a_person_s_deadline_is_of_one_job() -> None:
    run = building()
    run.asks(SagaAction.SET_DEADLINE, at=run.now + timedelta(hours=2))
    run.done("build")
    assert run.instance.given is None


def test_what_is_no_deadline_cannot_be_put_off_and_needs_no_cancelling() -> None:
    run = building()
    assert SagaAction.SET_DEADLINE in run.refused(SagaAction.SET_DEADLINE, extend_by=timedelta(hours=1))
    assert run.asks(SagaAction.CANCEL_DEADLINE).history == ()
    assert run.instance.wake_at != NEVER


def test_a_person_s_deadline_may_be_the_time_of_the_next_look() -> None:
    run = building()
    at = run.instance.wake_at
    assert at is not None
    acted = run.asks(SagaAction.SET_DEADLINE, at=at)
    assert (len(acted.history), run.instance.given, run.instance.wake_reason) == (1, at, JOB)
    assert run.asks(SagaAction.SET_DEADLINE, at=at).history == ()


def test_without_a_job_nothing_is_at_work() -> None:
    run = Run(RELEASE)
    before: Instance = run.instance
    assert job_at_work(RELEASE, before) is None
    run.asks(SagaAction.TERMINATE)
    assert job_cancel_cause(RELEASE, before, run.instance) is None


DROP = Job("drop-image", queue="builders", retries=1)
SWEEP = Saga(
    "sweep",
    (
        Step(
            "build",
            "BUILDING",
            job=BUILD,
            event="evt.built",
            then="SHIPPING",
            undo=Compensation(event="evt.gone", job=DROP),
        ),
        step("ship", "SHIPPING"),
    ),
)


def sweeping() -> Run:
    """A saga whose undo is a job that is at work."""
    run = Run(SWEEP, "build")
    run.fails(BROKEN)
    return run


def test_an_undo_can_be_a_job_too() -> None:
    run = sweeping()
    command = sent(run.sent[-1])
    assert (run.state, command.job, command.payload["undoesAttempt"]) == ("COMPENSATING", DROP, 1)
    assert (command.payload["event"], command.payload["idempotencyKey"]) == ("evt.gone", "sweep:7:build:undo")
    assert (run.instance.wake_reason, job_at_work(SWEEP, run.instance)) == (JOB, command.id)
    run.undone("build")
    assert run.state == FAILED
    assert Catalog([SWEEP]).commands == ("cmd.ship",)
    assert Catalog([SWEEP]).jobs == ("build-image", "drop-image")


def test_an_undo_whose_job_has_failed_waits_for_a_person_who_can_have_it_done_again() -> None:
    run = sweeping()
    before = run.instance
    run.fails(BROKEN)
    assert (run.state, job_cancel_cause(SWEEP, before, run.instance)) == ("COMPENSATION_FAILED", None)
    run.asks(SagaAction.RETRY)
    assert job_cancel_cause(SWEEP, before, run.instance) == before.command_id
    assert (sent(run.sent[-1]).job, sent(run.sent[-1]).attempt) == (DROP, 2)
    run.undone("build")
    assert run.state == FAILED


def test_an_undo_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(DefinitionError, match=r"step 'build', undo: a job has retries of its own"):
        Saga("sweep", (job_step(undo=Compensation(event="evt.gone", job=DROP, retry=RetryPolicy(2))),))
    with pytest.raises(DefinitionError, match=r"step 'build', undo: a command or a job is required"):
        Saga("sweep", (job_step(undo=Compensation(event="evt.gone")),))
