"""Is what the page about the executor registry says true?"""

from __future__ import annotations

import json
import re
import shlex
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pytest

from orchestrix.api.problems import CODES
from orchestrix.api.registry.models import MOST_RUNS, HeartbeatBody, RegisteredBody
from orchestrix.cli.arguments import parse
from orchestrix.config.registry import RegistrySettings
from orchestrix.config.tokens import SECRET_RECOMMENDED_CHARS, tokens_of
from orchestrix.domain.registry.addresses import AllowList, judge, parse_address
from orchestrix.domain.registry.executors import (
    GOODBYE_KEPT_S,
    PLAIN_GOODBYE_KEPT_S,
    ExecutorState,
    may_remove,
    state_of,
)
from orchestrix.domain.registry.routing import Candidate, NoExecutors, Strategy, pick
from orchestrix.registry.address_check import ADMISSION_KEPT_DEADS
from orchestrix.registry.directory import REFRESH_S
from orchestrix.registry.node_listeners import REPEAT_S
from orchestrix.registry.reaper import NEARLY_FULL
from orchestrix.registry.registrar import GROUP_LIMIT, REMOVED_KEPT
from orchestrix.worker.executor.heartbeat_log import REPEAT_EVERY
from tests.documents import README, ROOT, block, blocks
from tests.unit.documents.mermaid import mistakes

PAGE = ROOT / "docs" / "registry.md"
TEXT = PAGE.read_text()
TIMES = RegistrySettings()
NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
ADDRESS = re.compile(r"`(https?://[^`]+)`")


def section(title: str) -> str:
    """What stands below the heading."""
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """The cells of the table's rows."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def part(name: str) -> list[list[str]]:
    """The rows between the marks of that name, without the head."""
    return rows(TEXT.split(f"<!-- {name} -->\n")[1].split(f"<!-- /{name} -->")[0])[1:]


@pytest.mark.parametrize("diagram", blocks(PAGE, "mermaid"), ids=lambda text: text.splitlines()[0])
def test_mermaid_can_read_it(diagram: str) -> None:
    assert list(mistakes(diagram)) == []


@pytest.mark.req("S2-5", "S2-51", "S2-52", "S2-53", "S2-55")
def test_the_roles_of_the_original_design_lead_to_what_plays_them() -> None:
    found = {row[0]: row[1] for row in rows(TEXT.split("| role in the")[1].split("\n\n")[0])}
    for role in (
        "admin cluster",
        "ExecutorRegistryThread",
        "JobRegistryHelper",
        "OpenApiController",
        "RegistryRequest",
    ):
        assert any(role in name for name in found), role
    for name, places in found.items():
        for place, thing in re.findall(r"`(orchestrix/[\w/]+\.py)`(?: `(\w+)`)?", places):
            assert (ROOT / place).exists(), name
            assert not thing or f"class {thing}" in (ROOT / place).read_text(), name
    duties = TEXT.split("The monitor's four duties:")[1].split("\n\n")[0]
    assert all(word in duties for word in ("upsert", "address lists", "deleted", "failed executor is seen"))


@pytest.mark.req("S2-61")
def test_the_times_are_those_of_the_settings() -> None:
    found = {row[0]: row[1:3] for row in rows(TEXT.split("| | value | setting")[1].split("\n\n")[0])}
    assert found["heartbeat interval"][0] == f"{TIMES.beat:g} s"
    assert found["dead after"][0] == f"{TIMES.dead:g} s"
    assert found["clean-up, at the latest every"][0] == f"{TIMES.cleanup:g} s"
    assert "upsert" in " ".join(next(row for row in rows(TEXT) if row[0] == "a heartbeat that comes twice"))
    assert found["admins of an executor"][0] == "several"


@pytest.mark.parametrize(
    ("age", "state"),
    [(33, "HEALTHY"), (33.1, "GRACE_30"), (60, "GRACE_60"), (89.9, "GRACE_60"), (90, "GRACE_90")],
)
def test_the_states_begin_when_the_page_says(age: float, state: str) -> None:
    times = {"now": NOW, "beat_seconds": TIMES.beat, "dead_seconds": TIMES.dead}
    seen = NOW - timedelta(seconds=age)
    assert state_of(first_seen=NOW - timedelta(hours=1), last_seen=seen, leaving=False, **times)[0] == state  # type: ignore[arg-type]
    (row,) = [row for row in rows(section("Clean-up")) if row[0] == f"`{state}`"]
    assert re.search(r"33|60|90", row[2])


def test_every_state_is_explained_and_drawn() -> None:
    text = section("Clean-up")
    assert [row[0].strip("`") for row in rows(text)[1:]] == [*ExecutorState]
    drawn = block(PAGE, "mermaid", "stateDiagram-v2")
    assert all(f"--> {state}" in drawn for state in ExecutorState)
    assert f"shown for {REMOVED_KEPT / timedelta(minutes=1):g} minutes" in text


def test_the_last_one_of_all_is_removed_after_twice_the_dead_time() -> None:
    def threshold(silent: float) -> datetime | None:
        since, heard = NOW - timedelta(hours=1), NOW - timedelta(seconds=silent)
        times = {"beat_seconds": TIMES.beat, "dead_seconds": TIMES.dead}
        return may_remove(now=NOW, listening_since=since, last_heard_any=heard, **times)

    assert threshold(179) is None
    assert threshold(180) is not None
    assert "2 × `DEAD`, 180 s" in TEXT


def test_the_limits_are_those_of_the_code() -> None:
    assert f"at most {GROUP_LIMIT:,} executors" in TEXT
    assert f"from {NEARLY_FULL} executors of an app on" in TEXT
    assert f"kept for {GOODBYE_KEPT_S:g} s by its `instance`" in TEXT
    assert f"kept for {PLAIN_GOODBYE_KEPT_S:g} s" in TEXT
    assert f"at most some {REFRESH_S:g} s older" in TEXT
    assert f"counts for {ADMISSION_KEPT_DEADS * TIMES.dead:g} s more" in TEXT
    assert f"reads again every\n{REPEAT_S:g} s." in TEXT
    assert CODES["no_executors"].status == CODES["group_full"].status == 409
    with pytest.raises(NoExecutors, match="no executors available"):
        pick(Strategy.FIRST, [], key="", turn=0, chance=0)


def test_each_strategy_is_explained() -> None:
    found = rows(section("Routing strategies"))[1:]
    assert [row[0].strip("`") for row in found] == [*Strategy]
    assert all(len(row) == 3 and all(row) for row in found)


@pytest.mark.parametrize(
    ("entry", "allowed", "refused"),
    [
        ("10.0.0.0/8", "http://10.9.9.9:1", "http://11.0.0.1:1"),
        ("10.1.2.3:9999", "http://10.1.2.3:9999", "http://10.1.2.3:9998"),
        ("[fd00::/8]:9000-9099", "http://[fd00::7]:9050", "http://[fd00::7]:9100"),
        ("executor.example", "http://executor.example:1", "http://other.example:1"),
        ("*.svc.cluster.local:9999", "http://a.svc.cluster.local:9999", "http://svc.cluster.local:9999"),
    ],
)
def test_the_entries_of_the_allow_list_mean_what_the_page_says(entry: str, allowed: str, refused: str) -> None:
    assert [f"`{entry}`"] in [row[:1] for row in part("allow")]
    assert len(part("allow")) == 5
    list_ = AllowList.parse(entry)

    def holds(text: str) -> bool:
        address = parse_address(text)
        literal = re.fullmatch(r"[0-9.]+|.*:.*", address.host)
        return list_.holds(address, [ip_address(address.host)] if literal else [])

    assert (holds(allowed), holds(refused)) == (True, False)


def test_which_app_names_can_have_a_secret_of_their_own() -> None:
    assert "letters, digits and `_.@-` only; for other names set one secret for all apps" in TEXT
    assert list(tokens_of("a1_.@-:s3cret")) == ["a1_.@-"]
    for other in ("a b", "a/b", "é"):
        with pytest.raises(ValueError, match="letters, digits"):
            tokens_of(f"{other}:s3cret")
    assert f"shorter than {SECRET_RECOMMENDED_CHARS} characters is named in a warning" in TEXT


def test_what_is_never_called_is_refused_though_all_is_allowed() -> None:
    everything = AllowList.parse("0.0.0.0/0,::/0,metadata.google.internal")
    examples = [text for row in part("never") for text in ADDRESS.findall(row[1])]
    assert len(examples) >= 8
    for text in examples:
        address = parse_address(text)
        named = address.host.endswith("internal")
        ips = [ip_address("169.254.169.254" if named else address.host)]
        nodes = [(ip_address("10.0.0.1"), 8080)]
        assert "never called" in (judge(address, ips, everything, nodes) or ""), text
    assert judge(parse_address("http://10.0.0.7:9999"), [ip_address("10.0.0.7")], everything, []) is None


@pytest.mark.req("S2-34", "S2-68")
def test_when_a_group_is_auto_and_when_manual() -> None:
    auto, manual = rows(section("Groups"))[1:]
    assert (auto[0], manual[0]) == ("`AUTO` (0)", "`MANUAL` (1)")
    assert "autoscaling" in auto[2]
    assert "fixed machines and IP addresses" in manual[2]
    assert "Use AUTO where machines come and go" in section("Practices")


@pytest.mark.req("S2-56")
def test_what_stays_of_the_original_design() -> None:
    kept = section("The limits of the original design").split("What stays of it:")[1]
    words = ("no consensus", "any of several admins", "join and leave\nfreely", "needs no configuration")
    assert [word for word in words if word not in kept] == []


@pytest.mark.req("S2-66", "S2-69")
def test_what_to_watch() -> None:
    practices = section("Practices")
    assert "Watch the size" in practices
    assert "cannot grow without bound" in practices
    log = (ROOT / "orchestrix" / "worker" / "executor" / "heartbeat_log.py").read_text()
    assert "no admin accepts its heartbeats" in practices
    assert "no admin accepts its heartbeats" in log
    assert (REPEAT_EVERY, "each tenth" in practices) == (10, True)


def test_the_commands_can_be_typed() -> None:
    lines = block(PAGE, "sh", "registry route").splitlines()
    verbs = set()
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "orchestrix"
        parse(arguments)
        verbs.add(arguments[1])
    assert verbs == {"list", "show", "set", "drain", "route", "delete"}


def test_what_the_page_about_executors_says_of_the_fields() -> None:
    page = (ROOT / "docs" / "executors.md").read_text()
    fields = json.loads(block(ROOT / "docs" / "executors.md", "json", "registryGroup"))
    required = {key: fields[key] for key in list(fields)[:3]}
    assert "Only the first three fields are required. Fields that the server does not know are ignored." in page
    assert HeartbeatBody.model_validate({**required, "newer": 1}) == HeartbeatBody.model_validate(required)
    heartbeat = HeartbeatBody.model_validate({**fields, "state": "DRAINING", "weight": 7}).heartbeat
    assert (heartbeat.state, heartbeat.weight, heartbeat.load) == ("DRAINING", 7, 0.5)
    answer = RegisteredBody(beat_ms=round(TIMES.beat * 1000)).model_dump_json(by_alias=True)
    assert json.loads(answer) == json.loads(page.split("The answer is `")[1].split("`")[0])
    assert f"`runs` are the history ids of the attempts that the executor runs, at most {MOST_RUNS:,}" in page


def test_without_a_load_an_executor_counts_as_one_with_load_0() -> None:
    assert "without it an executor counts as one with load 0" in (ROOT / "docs" / "executors.md").read_text()
    silent, busy = Candidate("http://10.0.0.7:2", NOW), Candidate("http://10.0.0.7:1", NOW, load=0.1)
    assert pick(Strategy.LEAST_LOADED, [busy, silent], key="", turn=0, chance=0).addresses == (silent.address,)


def test_the_readme_leads_here() -> None:
    assert "(docs/registry.md)" in README.read_text()
