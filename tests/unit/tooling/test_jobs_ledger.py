"""Does the ledger of jobs see what must not be?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.jobs_ledger import Change, JobsLedger, Line, Term, Told

AT = datetime(2026, 1, 31, tzinfo=UTC)
Breach = Callable[[Told], object]


def good() -> Told:
    """A job that has said three lines, moved from one node to another meanwhile."""
    job = Told(
        id="j",
        state="SUCCEEDED",
        owner=None,
        channels=0,
        history="h",
        attempt=1,
        tries=1,
        seq=7,
        last_log_seq=6,
        worker="w",
        progress={"lines": 3},
        result={"lines": 3},
        error=None,
        attempts=[("h", "SUCCEEDED", "w", 6)],
        changes=[
            Change(2, "h", 0, "DISPATCHED", None, 0),
            Change(3, "h", 0, "DISPATCHED", "ada", 1),
            Change(5, "h", 3, "RUNNING", "ada", 1),
            Change(6, "h", 3, "RUNNING", "bob", 2),
            Change(8, "h", 7, "SUCCEEDED", "bob", 2),
            Change(9, "h", 7, "SUCCEEDED", None, 2),
        ],
    )
    job.lines["h"] = [Line(2, "line 1", "w"), Line(4, "line 2", "w"), Line(6, "line 3", "w")]
    return job


def ledger(job: Told, *, terms: list[Term] | None = None, seen: list[tuple[int, str]] | None = None) -> JobsLedger:
    default = [Term(1, None, "ada", "first", AT), Term(2, "ada", "bob", "lost", AT + timedelta(seconds=9))]
    return JobsLedger(
        jobs={job.id: job},
        nodes={},
        lease=(2, "bob"),
        terms=default if terms is None else terms,
        seen_terms=[(1, "ada"), (1, "ada"), (2, "bob")] if seen is None else seen,
    )


def test_a_good_run_passes() -> None:
    ledger(good()).check(["j"])


def test_a_job_that_nobody_has_is_missed() -> None:
    with pytest.raises(AssertionError, match="J1"):
        ledger(good()).check(["j", "k"])


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        (lambda job: setattr(job, "state", "FAILED"), "J1"),
        (lambda job: setattr(job, "attempt", 2), "J1"),
        (lambda job: job.attempts.append(("i", "LOST", "w", None)), "J1"),
        (lambda job: job.lines["h"].pop(1), "J2"),
        (lambda job: job.lines["h"].insert(1, Line(3, "line 1", "w")), "J2"),
        (lambda job: job.lines["h"].reverse(), "J2"),
        (lambda job: job.lines["i"].append(Line(1, "line 1", "w")), "J2"),
        (lambda job: job.lines["h"].__setitem__(0, Line(2, "line 1", "v")), "J2"),
        (lambda job: setattr(job, "seq", 5), "J3"),
        (lambda job: setattr(job, "progress", {"lines": 2}), "J3"),
        (lambda job: job.changes.insert(3, replace(job.changes[2], version=4)), "J4"),
        (lambda job: job.changes.insert(3, replace(job.changes[2], version=6, seq=2)), "J4"),
        (lambda job: job.changes.__setitem__(3, Change(6, "h", 3, "RUNNING", "bob", 1)), "J4"),
        (lambda job: job.changes.append(Change(10, "h", 7, "RUNNING", None, 2)), "J4"),
    ],
)
def test_what_must_not_be_is_seen(broken: Breach, rule: str) -> None:
    job = good()
    broken(job)
    with pytest.raises(AssertionError, match=rule):
        ledger(job).check(["j"])


@pytest.mark.parametrize(
    ("terms", "seen"),
    [
        ([Term(1, None, "ada", "first", AT), Term(3, "ada", "bob", "lost", AT)], [(1, "ada")]),
        ([Term(1, None, "ada", "first", AT), Term(2, "cyd", "bob", "lost", AT)], [(1, "ada")]),
        (None, [(1, "ada"), (2, "bob"), (1, "ada")]),
        (None, [(1, "ada"), (2, "cyd")]),
    ],
)
def test_terms_out_of_order_are_seen(terms: list[Term] | None, seen: list[tuple[int, str]]) -> None:
    with pytest.raises(AssertionError, match="T1"):
        ledger(good(), terms=terms, seen=seen).check_terms()
