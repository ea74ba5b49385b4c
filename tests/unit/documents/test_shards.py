"""Is what the page about shards says true?"""

from __future__ import annotations

import re
import shlex

import pytest
from pydantic import BaseModel

from orchestrix.broker.topology import SHARD_COORDINATOR, SHARD_MEMBER_PREFIX
from orchestrix.cli.arguments import parse
from orchestrix.cli.doctor.shards import NEARLY_FULL
from orchestrix.config.aliases import ALIASES
from orchestrix.config.shards import ShardsSettings
from orchestrix.domain.shards import messages
from orchestrix.domain.shards.allocation import Allocation, even
from orchestrix.domain.shards.generations import LEADER_MARGIN_S, TRANSITIONS, CauseKind
from orchestrix.domain.shards.members import MOST_MEMBERS, MOST_SERVICES, MOST_SHARDS, MOST_WEIGHT
from orchestrix.domain.shards.membership import TOO_MANY_MEMBERS
from orchestrix.domain.shards.state import PLAIN_RELEASE_S, ShardRules
from orchestrix.shards.coordinator import HISTORY_KEPT
from orchestrix.shards.listening import LARGEST_JUMP_S
from orchestrix.telemetry import log_events
from tests.documents import ROOT, block, blocks
from tests.unit.documents.mermaid import mistakes

PAGE = ROOT / "docs" / "shards.md"
TEXT = PAGE.read_text()


def rows(text: str) -> list[list[str]]:
    """The cells of the table's rows."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def part(name: str) -> list[list[str]]:
    """The rows between the marks of that name, without the head."""
    return rows(TEXT.split(f"<!-- {name} -->\n")[1].split(f"<!-- /{name} -->")[0])[1:]


@pytest.mark.parametrize("diagram", blocks(PAGE, "mermaid"), ids=lambda text: text.splitlines()[0])
def test_mermaid_can_read_it(diagram: str) -> None:
    assert list(mistakes(diagram)) == []


@pytest.mark.req("S4-1", "S4-2", "S4-3", "S4-4")
def test_each_problem_of_s4_has_what_solves_it() -> None:
    table = rows(TEXT.split("| problem in S4 | here |\n")[1])
    assert [bool(problem and here) for problem, here in table] == [True] * 4
    assert "`IllegalTransition`" in table[2][1]


@pytest.mark.req("S4-10", "S4-11", "S4-12", "S4-40")
def test_the_states_are_drawn_with_their_transitions() -> None:
    moves = re.findall(r"^ +(\w+) --> (\w+):", block(PAGE, "mermaid", "stateDiagram-v2").lower(), re.MULTILINE)
    assert sorted(moves) == sorted((str(one), str(other)) for one, others in TRANSITIONS.items() for other in others)


@pytest.mark.req("S1-43", "S1-44", "S1-45", "S1-46", "S1-48", "S1-49")
@pytest.mark.req("S4-30", "S4-31", "S4-32", "S4-33", "S4-34", "S4-35", "S4-36", "S4-37", "S4-38", "S4-39")
def test_each_role_names_modules_that_are_there_with_what_is_in_them() -> None:
    table = rows(TEXT.split("| role | here | settings |\n")[1].split("\n\n")[0])
    assert len(table) == 16
    for role, here, settings in table:
        named = re.findall(r"`([a-z_/]+\.py)`(?: `(\w+)`(?:, `(\w+)`)?)?", here)
        assert named or "tests/" in here or "the same on" in here, role
        for place, *names in named:
            text = (ROOT / "orchestrix" / place).read_text()
            assert all(re.search(rf"def {name}\b", text) for name in names if name), role
        for folder in re.findall(r"`(tests/[a-z_/]+)`", here):
            assert (ROOT / folder).is_dir()
        for setting in re.findall(r"`(\w+)`", settings):
            assert setting.lower() in ShardsSettings.model_fields


def test_the_fields_are_those_of_the_messages() -> None:
    models: dict[str, type[BaseModel]] = {
        "register": messages._Register,
        "heartbeat": messages._Heartbeat,
        "leave": messages._Leave,
        "assignment": messages._AssignmentData,
    }
    told = {one[0].split("`")[1]: set(re.findall(r"`(\w+)`", " ".join(one[1:]))) for one in part("messages")}
    assert told == {kind: set(model.model_fields) for kind, model in models.items()}
    assert SHARD_COORDINATOR in TEXT
    assert f"`{SHARD_MEMBER_PREFIX}<id>`" in TEXT


def test_the_limits_are_those_of_the_code() -> None:
    limits = [MOST_SHARDS, MOST_MEMBERS, MOST_SERVICES, messages.MOST_BYTES, MOST_WEIGHT]
    shown = [one[1].removesuffix(" s").replace(",", "") for one in part("limits")]
    assert shown == [*map(str, limits), str(messages.LONGEST_GRACE_MS // 1000)]
    assert NEARLY_FULL == 0.9
    assert f"{messages.MOST_BYTES // 1024} KiB" in TEXT


@pytest.mark.req("S1-13", "S1-14")
def test_the_settings_are_there_with_their_values_and_names_of_s1() -> None:
    values = ShardsSettings().model_dump()
    names = {path: alias for alias, path in ALIASES.items() if path.startswith("shards.")}
    for setting, value, alias, _ in part("settings"):
        name = setting.strip("`").removeprefix("ORCHESTRIX_SHARDS__").lower()
        known = values[name]
        assert value == (f"{known:g} s" if isinstance(known, float) else known)
        assert alias.strip("`") == names.get(f"shards.{name}", "")


@pytest.mark.req("S1-32")
def test_the_figures_of_the_text_are_those_of_the_code() -> None:
    rules = ShardRules()
    shares = even(10, ["a", "b", "c"])
    assert [one.ranges[0] for one in shares.values()] == [(0, 3), (4, 6), (7, 9)]
    assert "10 shards, 3 members: 0–3, 4–6, 7–9" in TEXT
    assert "(the window and 10 s)" in TEXT
    assert LEADER_MARGIN_S == PLAIN_RELEASE_S == rules.lease_s == 10.0
    assert "its lease ends after 10 s" in TEXT
    assert "begun again after at most 12 s" in TEXT
    assert LEADER_MARGIN_S + rules.window_s == 12.0
    assert "a jump of more than 2 s" in TEXT
    assert LARGEST_JUMP_S == 2.0
    assert HISTORY_KEPT.days == 7
    assert all(f"`{cause}`" in TEXT for cause in CauseKind)
    assert all(f"`{rule}`" in TEXT for rule in Allocation)


def test_the_commands_are_there() -> None:
    lines = block(PAGE, "sh", "orchestrix shards show").splitlines()
    assert len(lines) == 7
    for line in lines:
        parse(shlex.split(line.partition("#")[0])[1:])


def test_the_log_lines_are_those_that_are_written() -> None:
    names = {name for name in vars(log_events).values() if isinstance(name, str) and name.startswith("shards.")}
    lines = block(PAGE, "text", "orders: member w-3 joined").splitlines()
    assert {line.split()[0] for line in lines} | {"shards.answered", "shards.clients"} == names
    assert lines[-1].endswith(TOO_MANY_MEMBERS)


def test_links_lead_somewhere() -> None:
    links = set(re.findall(r"\]\(([\w.-]+\.md)", TEXT))
    assert "shard-members.md" in links
    assert {one for one in links if not (PAGE.parent / one).exists()} == set()


def test_the_opening_of_plain_clients_says_what_a_node_needs_beyond_loopback() -> None:
    opening = (PAGE.parent / "shards-plain-clients.md").read_text("utf-8").partition("\n## ")[0]
    example, _, after = opening.partition("SHARD_COORDINATOR_BIND_HOST=tcp://127.0.0.1 orchestrix dev")
    assert example
    assert "only with the keys of [CURVE](#who-may-connect), or with `ORCHESTRIX_SHARDS__ZMQ_AUTH=none`" in after
