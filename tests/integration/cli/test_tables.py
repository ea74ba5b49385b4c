"""Do tables fit the terminal, are times readable, and is what is empty left out?"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from orchestrix.cli.output import width
from tests.integration.cli.fake_api import FakeApi, Reply, app, change
from tests.integration.cli.samples import ATTEMPT, CLUSTER, DEAD_LETTER, JOB, SCHEDULE
from tests.unit.cli.shell import Shell


def page(*items: object) -> Reply:
    return Reply(body={"items": list(items), "nextCursor": None})


@pytest.fixture(autouse=True)
def noon(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is three hours after the examples."""
    monkeypatch.setattr("orchestrix.clock.now", lambda: datetime(2026, 1, 31, 15, 0, 5, tzinfo=UTC))
    monkeypatch.delenv("COLUMNS", raising=False)


LONG = "evt.stepFailed: CardDeclined: " + "the bank says no, " * 20


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_a_table_fits_the_terminal_and_wide_shows_all(api: FakeApi, shell: Shell, columns: int) -> None:
    rows = [change(1, None, "GIT_REPO_CREATED"), change(2, "GIT_REPO_CREATED", "COMPENSATION_FAILED", LONG)]
    api.on("GET", "/apps/42/history", page(*rows))
    shell.set(COLUMNS=str(columns))
    lines = shell("apps", "history", "42").out.splitlines()
    assert max(map(width, lines)) <= columns
    assert "…" in lines[2]
    wide = shell("apps", "history", "42", "-o", "wide").out
    assert LONG.strip() in wide
    assert "2026-01-31T12:00:02.500000Z" in wide


def test_a_wider_terminal_shows_more_of_a_reason(api: FakeApi, shell: Shell) -> None:
    api.on("GET", "/apps/42/history", page(change(2, "GIT_REPO_CREATED", "COMPENSATION_FAILED", LONG)))
    seen = []
    for columns in (100, 160, 500):
        shell.set(COLUMNS=str(columns))
        seen.append(shell("apps", "history", "42").out.splitlines()[1])
    assert width(seen[0]) <= 100 < width(seen[1]) <= 160
    assert LONG[:20] in seen[0]
    assert LONG[:80] in seen[1]
    assert LONG.strip() in seen[2]


def test_a_list_of_jobs_fits_a_usual_terminal(api: FakeApi, shell: Shell) -> None:
    waits = "no worker serves queue monthly-reports: start one with `orchestrix worker --job-queue monthly-reports`"
    waiting = {**JOB, "state": "DISPATCHED", "queue": "monthly-reports", "handler": "render-all-the-pages"}
    waiting |= {"progress": None, "waitsFor": waits, "workerId": None, "createdBy": "somebody@example.org"}
    ended = {**waiting, "state": "SUCCEEDED", "waitsFor": None, "progress": {"percent": 100}}
    shell.set(COLUMNS="100")
    for rows in ([waiting], [ended], [waiting, ended]):
        api.on("GET", "/jobs", page(*rows))
        lines = shell("jobs", "list").out.splitlines()
        assert max(map(width, lines)) <= 100
        assert all(str(row["state"]) in line for row, line in zip(rows, lines[1:], strict=True))
        assert all("3 h ago" in line for line in lines[1:])
    api.on("GET", "/jobs", page(waiting))
    line = shell("jobs", "list").out.splitlines()[1]
    assert waits[:12] in line
    wide = shell("jobs", "list", "-o", "wide").out
    assert waits in wide
    assert "somebody@example.org" in wide


def test_an_id_is_never_cut(api: FakeApi, shell: Shell) -> None:
    api.on("GET", "/dead-letters", page(DEAD_LETTER))
    shell.set(COLUMNS="40")
    assert DEAD_LETTER["id"] in shell("dlq", "list").out


@pytest.mark.parametrize("columns", [60, 80, 100, 160])
@pytest.mark.parametrize("name", ["n" * 200, "é日" * 100])
def test_a_table_that_begins_with_long_names_fits_too(api: FakeApi, shell: Shell, columns: int, name: str) -> None:
    group = {"appName": name, "addressType": "MANUAL", "addressList": ["http://10.0.0.7:9999"], "executors": []}
    api.on("GET", "/registry/groups", page({**group, "appName": "shop"}, group))
    api.on("GET", "/schedules", page({**SCHEDULE, "name": name}, {**SCHEDULE, "name": "nightly"}))
    shell.set(COLUMNS=str(columns))
    for words in ("registry list", "schedules list")[: 1 if columns < 80 else 2]:
        lines = shell(*words.split()).out.splitlines()
        assert max(map(width, lines)) <= columns, words
        assert any(line.startswith(name[:15]) and "…" in line for line in lines), words
    out = shell("registry", "list").out
    assert "MANUAL" in out, "what is short is not cut for a long name"
    assert columns < 100 or "OLDEST LAST SEEN" in out, "nor is the rest as long as the name has half of the room"
    assert name in shell("registry", "list", "-o", "wide").out


def test_where_nobody_looks_nothing_is_cut(api: FakeApi, shell: Shell) -> None:
    api.on("GET", "/apps/42/history", page(change(2, "A", "B", LONG)))
    assert LONG.strip() in shell("apps", "history", "42").out


def test_times_are_ages_or_utc(api: FakeApi, shell: Shell) -> None:
    api.on("GET", "/apps", page(app()))
    assert shell("apps", "list").out.splitlines()[1].endswith("  3 h ago")
    assert shell("apps", "list", "--utc").out.splitlines()[1].endswith("  2026-01-31T12:00:00Z")
    api.on("GET", "/apps/42", Reply(body=app()))
    assert "createdAt      2026-01-31T12:00:00Z (3 h ago)" in shell("apps", "show", "42").out


@pytest.mark.parametrize(
    "words", ["apps list", "jobs list", "dlq list", "schedules list", "deadlines list", "stuck", "audit", "workers"]
)
def test_an_empty_list_says_so(api: FakeApi, shell: Shell, words: str) -> None:
    path = {"apps list": "apps", "jobs list": "jobs", "dlq list": "dead-letters"}.get(words, words.split()[0])
    api.on("GET", f"/{path}", page())
    answer = shell(*words.split())
    assert (answer.code, answer.out) == (0, "none\n")
    assert shell(*words.split(), "-o", "json").json["items"] == []


def test_what_is_empty_is_left_out_and_attempts_are_a_table(api: FakeApi, shell: Shell) -> None:
    api.on("GET", f"/jobs/{JOB['id']}", Reply(body={**JOB, "attempts": [ATTEMPT, {**ATTEMPT, "attempt": 2}]}))
    answer = shell("jobs", "show", JOB["id"])
    names = [line.split()[0] for line in answer.out.splitlines()]
    assert "cancelReason" not in names
    assert "scheduleId" not in names
    assert ["progress", "40", "%"] in [line.split() for line in answer.out.splitlines()]
    assert 'historyId": ' not in answer.out
    head, *rows = answer.out.splitlines()[names.index("attempts:") + 1 :]
    assert head.split() == ["HISTORY", "ID", "ATTEMPT", "STATE", "WORKER", "ID", "DISPATCHED", "STARTED"]
    assert [row.split()[1] for row in rows] == ["1", "2"]
    assert "cancelReason" in shell("jobs", "show", JOB["id"], "-o", "wide").out


def test_cells_are_no_json(api: FakeApi, shell: Shell) -> None:
    api.on("GET", "/jobs", page(JOB))
    assert "  40 %  " in shell("jobs", "list").out
    unknown = {name: [{**one, "version": None, "host": None} for one in CLUSTER[name]] for name in ("nodes", "workers")}
    api.on("GET", "/cluster", Reply(body={**CLUSTER, **unknown}))
    out = shell("cluster", "status").out
    assert "[" not in out
    assert all(head in out for head in ("ROLES", "LAST SEEN", "DURATION (ms)"))
    assert "VERSION" not in out, "nobody says one"
    nodes = [{**one, "version": "1.2.3", "host": "box"} for one in CLUSTER["nodes"]]
    api.on("GET", "/cluster", Reply(body={**CLUSTER, "nodes": nodes}))
    assert {"VERSION", "HOST", "1.2.3", "box"} <= set(shell("cluster", "status").out.split())


def test_the_key_of_a_lost_event_is_shown_and_looked_for(api: FakeApi, shell: Shell) -> None:
    lost = {**DEAD_LETTER, "queue": "orchestrator.unrouted", "routingKey": "evt.typo", "type": None, "saga": None}
    api.on("GET", "/dead-letters", page(DEAD_LETTER, lost))
    lines = shell("dlq", "list", "--key", "evt.typo").out.splitlines()
    assert len(lines) == 2
    assert lines[1].split()[1:3] == ["orchestrator.unrouted", "evt.typo"]
    assert [one["routingKey"] for one in shell("dlq", "list", "--key", "evt.typo", "-o", "json").json["items"]] == [
        "evt.typo"
    ]


def test_what_is_stuck_over_all_sagas(api: FakeApi, shell: Shell) -> None:
    one = {"saga": "trip", "id": 2, "key": "t-1", "state": "PAYING", "step": "pay", "attempt": 3,
           "sentence": "cmd.pay has 4 messages and no consumer.", "since": "2026-01-31T14:00:05.000000Z",
           "wakeAt": None}  # fmt: skip
    api.on("GET", "/stuck", page(one))
    answer = shell("stuck", "--limit", "5")
    assert api.requests[0].query == {"limit": ["5"]}
    head, row = answer.out.splitlines()
    assert head.split() == ["SAGA", "ID", "NAME", "STATE", "STEP", "ATTEMPT", "WHY", "SINCE", "NEXT"]
    assert row.split()[:6] == ["trip", "2", "t-1", "PAYING", "pay", "3"]
    assert "cmd.pay has 4 messages and no consumer." in row
    assert "60 min ago" in row


def test_what_people_did(api: FakeApi, shell: Shell) -> None:
    row = {"at": "2026-01-31T14:59:05.000000Z", "actor": "ada", "action": "cancel", "reason": "r", "saga": "trip",
           "sagaId": 2, "fromVersion": 1, "toVersion": 2}  # fmt: skip
    api.on("GET", "/audit", page(row))
    answer = shell("audit", "--actor", "ada", "--action", "cancel", "--saga", "trip")
    assert api.requests[0].query == {"actor": ["ada"], "action": ["cancel"], "saga": ["trip"]}
    assert answer.out.splitlines()[1].split() == ["60", "s", "ago", "ada", "cancel", "trip", "2", "r"]


def test_a_cursor_that_begins_with_a_hyphen_can_be_typed_as_shown(api: FakeApi, shell: Shell) -> None:
    api.on("GET", "/audit", Reply(body={"items": [], "nextCursor": "-c2"}))
    shown = shell("audit", "--limit", "1").err.split()[-1]
    assert shell("audit", "--limit", "1", shown).code == 0
    assert api.requests[-1].query == {"limit": ["1"], "cursor": ["-c2"]}


def test_what_people_did_to_no_saga_names_what_it_was_done_to(api: FakeApi, shell: Shell) -> None:
    row = {"at": "2026-01-31T14:59:05.000000Z", "actor": "ada", "action": "x", "reason": "r", "saga": None,
           "sagaId": None}  # fmt: skip
    details = [{"app": "shop", "address": "a"}, {"job": "j-1"}, {"node": "n-1"}, {"schedule": "s", "name": "day"}, None]
    api.on("GET", "/audit", page(*({**row, "detail": one} for one in details)))
    lines = [line.split()[5:] for line in shell("audit").out.splitlines()[1:]]
    assert lines == [["shop", "r"], ["j-1", "r"], ["n-1", "r"], ["day", "r"], ["-", "r"]]


def test_every_worker(api: FakeApi, shell: Shell) -> None:
    worker = {"id": "w-1", "state": "ALIVE", "queues": ["reports"], "jobs": 0, "lostPlaces": 0,
              "beatAt": "2026-01-31T15:00:05.000000Z", "startedAt": "2026-01-31T12:00:00.000000Z"}  # fmt: skip
    api.on("GET", "/workers", page(worker))
    assert shell("workers").out.splitlines()[1].split() == ["w-1", "ALIVE", "reports", "now", "3", "h", "ago"]


def test_the_sagas_that_there_are(api: FakeApi, shell: Shell) -> None:
    old = {"version": 1, "runsHere": True, "live": {"PAYING": 2, "PACKING": 1}}
    new = {"version": 2, "runsHere": True, "live": {}}
    trip = {"saga": "trip", "path": "/sagas/trip", "starts": 2, "versions": [old, new]}
    api.on("GET", "/sagas", Reply(body={"items": [trip]}))
    head, first, second = shell("sagas", "definitions").out.splitlines()
    assert head.split() == ["SAGA", "VERSION", "NEW", "ONES", "LIVE", "BY", "STATE", "RUNS", "HERE"]
    assert first.split() == ["trip", "1", "no", "3", "2", "PAYING,", "1", "PACKING", "yes"]
    assert second.split()[:4] == ["trip", "2", "yes", "0"]


def test_workers_of_commands_and_where_they_are(api: FakeApi, shell: Shell) -> None:
    worker = {"id": "w-1", "state": "SILENT", "queues": [], "commandQueues": ["cmd.pay", "cmd.free"], "jobs": 0,
              "commands": 4, "handlers": [], "host": "host-1", "version": "1.2.3", "lostPlaces": 0,
              "beatAt": "2026-01-31T15:00:05.000000Z", "startedAt": "2026-01-31T12:00:00.000000Z"}  # fmt: skip
    api.on("GET", "/workers", page(worker))
    head, row = shell("workers", "--queue", "cmd.pay", "--kind", "commands").out.splitlines()
    assert api.requests[-1].query == {"queue": ["cmd.pay"], "kind": ["commands"]}
    assert "  COMMANDS OF  " in head
    assert row.split() == [
        "w-1", "SILENT", "cmd.pay,", "cmd.free", "4", "host-1", "1.2.3", "now", "3", "h", "ago"
    ]  # fmt: skip
    assert shell("workers", "--kind", "x").code == 2
