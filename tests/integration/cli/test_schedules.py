"""What do the commands about schedules ask of the API, and what do they show?"""

from __future__ import annotations

import pytest

from tests.integration.cli.fake_api import FakeApi, Reply, problem
from tests.integration.cli.samples import COMING, JOB, SCHEDULE
from tests.unit.cli.shell import Shell

NAME = SCHEDULE["name"]
PATH = f"/schedules/{NAME}"


def test_one_is_made_with_all_that_can_be_said(api: FakeApi, shell: Shell) -> None:
    api.on("POST", "/schedules", Reply(201, SCHEDULE))
    policy = (
        "--time-zone Europe/Berlin --starts-at 2026-01-01T00:00:00Z --ends-at 2027-01-01T00:00:00Z --overlap queue "
        "--misfire catch_up --catch-up 3 --missed-after 5m --jitter 10s --timeout 10m --retries 2 --by ada"
    )
    target = (NAME, "reports", "monthly", "--cron", "30 2 * * MON-FRI", "--payload", '{"month": 3}')
    answer = shell("schedules", "create", *target, *policy.split(), "-o", "json")
    assert (answer.code, answer.json) == (0, SCHEDULE)
    assert api.requests[0].body == {
        "name": NAME,
        "job": {"queue": "reports", "handler": "monthly", "payload": {"month": 3}, "timeout": "10m", "retries": 2},
        "cron": "30 2 * * MON-FRI",
        "timeZone": "Europe/Berlin",
        "startsAt": "2026-01-01T00:00:00Z",
        "endsAt": "2027-01-01T00:00:00Z",
        "overlap": "queue",
        "misfire": "catch_up",
        "catchUp": 3,
        "missedAfter": "5m",
        "jitter": "10s",
        "createdBy": "ada",
    }


def test_one_is_made_with_as_little_as_can_be_said(api: FakeApi, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    api.on("POST", "/schedules", Reply(201, SCHEDULE))
    answer = shell("schedules", "create", NAME, "reports", "monthly", "--every", "90s")
    assert answer.code == 0
    assert "30 2 * * MON-FRI" in answer.out
    assert api.requests[0].body == {
        "name": NAME,
        "job": {"queue": "reports", "handler": "monthly"},
        "interval": "90s",
        "createdBy": "ada",
    }
    shell("schedules", "create", NAME, "reports", "monthly", "--every", "90s", "--token", "geheim")
    assert "createdBy" not in api.requests[1].body, "whose the token is, the API knows"


ROUTED = {"strategy": "CONSISTENT_HASH", "key": "eu", "address": None, "end": None}
FOR_GROUP = {
    **SCHEDULE,
    "job": {
        **SCHEDULE["job"],
        "queue": None,
        "group": "shop",
        "routing": ROUTED,
    },
}


def test_one_is_made_for_a_group(api: FakeApi, shell: Shell) -> None:
    api.on("POST", "/schedules", Reply(201, FOR_GROUP))
    routed = ("--group", "shop", "--routing", "consistent_hash", "--key", "eu")
    answer = shell("schedules", "create", NAME, "monthly", *routed, "--every", "1h", "--by", "ada", "--utc")
    assert answer.code == 0, answer.err
    assert api.requests[0].body["job"] == {
        "handler": "monthly",
        "group": "shop",
        "routing": {"strategy": "CONSISTENT_HASH", "key": "eu"},
    }
    shown = {line.split()[0]: line.split(maxsplit=1)[1] for line in answer.out.splitlines() if " " in line.strip()}
    assert (shown["job.group"], shown["job.routing"]) == ("shop", "CONSISTENT_HASH, key eu")
    assert "job.queue" not in shown


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("reports", "monthly", "--group", "shop"), "--group takes the place of QUEUE: give a HANDLER alone, not"),
        (("reports", "monthly", "--routing", "FIRST"), "--routing is for executors: name their app with --group"),
        (("monthly", "--group", "shop", "--routing", "ADDRESS"), "--address is required with --routing ADDRESS"),
        (("monthly", "--group", "shop", "--end", "any"), "--end has no use with --routing ROUND_ROBIN"),
        (("monthly",), "HANDLER"),
    ],
)
def test_what_does_not_go_together_is_refused_before_it_is_sent(
    api: FakeApi, shell: Shell, words: tuple[str, ...], says: str
) -> None:
    answer = shell("schedules", "create", NAME, *words, "--every", "1h")
    assert (answer.code, says in answer.err) == (2, True), answer.err
    assert api.requests == []


def test_a_group_takes_the_place_of_the_queue(api: FakeApi, shell: Shell) -> None:
    api.on("PATCH", PATH, Reply(body=FOR_GROUP))
    assert shell("schedules", "edit", NAME, "--group", "shop", "--routing", "failover", "--reason", "moved").code == 0
    assert api.requests[0].body == {
        "job": {"group": "shop", "routing": {"strategy": "FAILOVER"}},
        "reason": "moved",
    }
    assert shell("schedules", "edit", NAME, "--queue", "reports", "--reason", "back").code == 0
    assert api.requests[1].body["job"] == {"queue": "reports"}


def test_a_list_as_a_table(api: FakeApi, shell: Shell) -> None:
    hourly = {**SCHEDULE, "name": "hourly", "cron": None, "intervalMs": 3_600_000, "timeZone": "UTC"}
    api.on("GET", "/schedules", Reply(body={"items": [hourly, SCHEDULE], "nextCursor": "c2"}))
    answer = shell("schedules", "list", "--limit", "2", "--cursor", "c1")
    assert answer.code == 0
    assert api.requests[0].query == {"limit": ["2"], "cursor": ["c1"]}
    head, first, second = answer.out.splitlines()
    assert head.split()[:3] == ["NAME", "STATE", "WHEN"]
    assert "every 3600s" in first
    assert "30 2 * * MON-FRI  Europe/Berlin" in second
    assert "--cursor=c2" in answer.err
    assert shell("schedules", "list", "-o", "json").json["nextCursor"] == "c2"


def test_one_is_shown_and_its_name_is_quoted(api: FakeApi, shell: Shell) -> None:
    api.on("GET", PATH, Reply(body=SCHEDULE))
    assert shell("schedules", "show", NAME, "-o", "json").json == SCHEDULE
    assert shell("schedules", "show", "a/b?c").code == 3
    assert api.requests[-1].path == "/schedules/a%2Fb%3Fc"
    assert shell("schedules", "show", "..").code == 3
    assert api.requests[-1].path == "/schedules/%2E%2E"
    assert shell("schedules", "show", "").code == 2


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_one_is_paused_and_resumed(api: FakeApi, shell: Shell, verb: str) -> None:
    api.on("POST", f"{PATH}/{verb}", Reply(body=SCHEDULE))
    assert shell("schedules", verb, NAME, "--reason", "r", "-o", "json").json == SCHEDULE
    assert api.requests[0].body == {"reason": "r"}


def test_one_is_changed(api: FakeApi, shell: Shell) -> None:
    api.on("PATCH", PATH, Reply(body=SCHEDULE))
    assert shell("schedules", "edit", NAME, "--every", "2h", "--overlap", "queue", "--reason", "r").code == 0
    assert api.requests[0].body == {"interval": "2h", "overlap": "queue", "reason": "r"}
    answer = shell("schedules", "edit", NAME)
    assert (answer.code, "nothing is to be changed" in answer.err) == (2, True)


def test_the_job_of_one_is_changed(api: FakeApi, shell: Shell) -> None:
    api.on("PATCH", PATH, Reply(body=SCHEDULE))
    job = (
        "--queue",
        "letters",
        "--handler",
        "weekly",
        "--payload",
        '{"month": 4}',
        "--timeout",
        "5m",
        "--retries",
        "0",
    )
    assert shell("schedules", "edit", NAME, *job, "--reason", "r").code == 0
    new = {"queue": "letters", "handler": "weekly", "timeout": "5m", "retries": 0, "payload": {"month": 4}}
    assert api.requests[0].body == {"job": new, "reason": "r"}
    assert shell("schedules", "edit", NAME, "--no-timeout", "--reason", "r").code == 0
    assert api.requests[1].body == {"job": {"timeout": None}, "reason": "r"}
    assert "not allowed with" in shell("schedules", "edit", NAME, "--no-timeout", "--timeout", "5m").err
    assert "--payload must be a JSON object" in shell("schedules", "edit", NAME, "--payload", "3").err
    no_json = shell("schedules", "edit", NAME, "--payload", "{month: 4}").err
    assert "is not JSON (line 1, column 2: expected a property name in double quotes)" in no_json


def test_one_is_run_now(api: FakeApi, shell: Shell) -> None:
    api.on("POST", f"{PATH}/run", Reply(201, JOB))
    answer = shell("schedules", "run", NAME, "--reason", "r")
    assert (answer.code, JOB["id"] in answer.out) == (0, True)
    assert api.requests[0].body == {"reason": "r"}


def test_the_past_is_made_up_for(api: FakeApi, shell: Shell) -> None:
    span = ("--from", "2026-01-01T00:00:00Z", "--to", "2026-01-03T00:00:00Z", "--reason", "r")
    dues = ["2026-01-01T12:00:00.000000Z", "2026-01-02T12:00:00.000000Z"]
    done = {"dryRun": False, "dueTimes": dues, "present": 1, "jobs": ["j-1", "j-2"], "note": None}
    tried = {**done, "dryRun": True, "jobs": [], "note": "the schedule begins later"}
    api.on("POST", f"{PATH}/backfill", Reply(body=tried), Reply(body=done))
    dry = shell("schedules", "backfill", NAME, *span, "--dry-run")
    assert dry.out.splitlines()[1:] == [
        "2026-01-01T12:00:00Z  -",
        "2026-01-02T12:00:00Z  -",
        "due times that had a run already: 1",
        "the schedule begins later",
        "Dry run, nothing changed.",
    ]
    assert api.requests[0].body == {"from": span[1], "to": span[3], "dryRun": True, "reason": "r"}
    assert shell("schedules", "backfill", NAME, *span).out.splitlines()[1:3] == [
        "2026-01-01T12:00:00Z  j-1",
        "2026-01-02T12:00:00Z  j-2",
    ]
    assert shell("schedules", "backfill", NAME, *span, "-o", "json").json == done


def test_what_is_to_come(api: FakeApi, shell: Shell) -> None:
    api.on("GET", f"{PATH}/preview", Reply(body={"items": [COMING]}))
    answer = shell("schedules", "preview", NAME, "--count", "1")
    assert answer.out.splitlines()[1].split() == [COMING["local"], COMING["dueAt"], COMING["beginsAt"]]
    assert api.requests[0].query == {"count": ["1"]}
    assert shell("schedules", "preview", NAME, "-o", "json").json == {"items": [COMING]}


def test_one_is_forgotten(api: FakeApi, shell: Shell) -> None:
    gone = {**SCHEDULE, "runsCancelled": 2, "runsOngoing": 1}
    api.on("DELETE", PATH, Reply(body=gone))
    answer = shell("schedules", "delete", NAME, "--reason", "rubbish")
    assert (answer.code, api.requests[0].body) == (0, {"reason": "rubbish"})
    assert answer.out.splitlines() == [
        f"{NAME} is deleted: nothing is due any more",
        "runs that no worker had begun, and that are cancelled: 2",
        "runs that go on to their end, with their retries: 1",
        f"all of them: `orchestrix jobs list --schedule {SCHEDULE['id']}`",
    ]
    assert shell("schedules", "delete", NAME, "-o", "json").json == gone


def test_what_is_wrong_is_told_as_the_api_says_it(api: FakeApi, shell: Shell) -> None:
    detail = "cron has the minute '61', which cannot be read: write * or 0 to 59."
    errors = [{"pointer": "/cron", "detail": "has the minute '61', which cannot be read: write * or 0 to 59"}]
    api.on("POST", "/schedules", problem(422, "invalid_body", detail, errors=errors))
    answer = shell("schedules", "create", NAME, "reports", "monthly", "--cron", "61 * * * *")
    assert (answer.code, answer.err) == (2, f"error: --{detail.removesuffix('.')}\n")


@pytest.mark.parametrize(("status", "code"), [(404, 3), (409, 4), (412, 4), (503, 5)])
def test_exit_codes(api: FakeApi, shell: Shell, status: int, code: int) -> None:
    api.on("POST", f"{PATH}/run", problem(status, "x", "A run of it is at work."))
    assert shell("schedules", "run", NAME).code == code
