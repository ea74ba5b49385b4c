"""Does docs/contracts.md name the rules that the checks have?"""

from __future__ import annotations

import re
from pathlib import Path

from orchestrix.cli.executor_check import rules as executor_rules
from orchestrix.cli.nouns.local import EXECUTOR_CHECK, WORKER_CHECK
from orchestrix.cli.worker_check import rules as worker_rules
from tests.documents import CONTRACTS, ROOT


def test_each_rule_of_a_worker_has_its_row() -> None:
    section = CONTRACTS.read_text().partition("## A worker without our SDK")[2].partition("```js")[0]
    rows = re.findall(r"^\| `(.+?)` \|", section, re.MULTILINE)
    assert sorted(rows) == sorted(["answer", *worker_rules.RULES])


def test_each_rule_of_an_executor_is_named() -> None:
    section = CONTRACTS.read_text().partition("Its rules are ")[2].partition("\n\n")[0]
    assert re.findall(r"`(.+?)`", section) == ["health", "run", *executor_rules.RULES]


def test_each_option_of_the_check_has_its_row() -> None:
    options = {flag for one in WORKER_CHECK.flat for flag in one.flags if flag.startswith("--")}
    assert options - set(re.findall(r"`?(--[a-z-]+)", CONTRACTS.read_text())) == {"--port"}


def test_each_rule_that_needs_an_option_is_named_beside_it() -> None:
    functions = re.split(r"\n(?=async def )", Path(str(worker_rules.__file__)).read_text())
    section = CONTRACTS.read_text().partition("## worker-check")[2].partition("## executor-check")[0]
    asked = {
        (option, rule)
        for rule, function in worker_rules.RULES.items()
        for one in functions
        if one.startswith(f"async def {function.__name__}(")
        for option in re.findall(r"give (--[a-z-]+)", one)
    }
    assert {rule for _, rule in asked} == {"redelivery", "undo by effectKey", "slow work"}
    for option, rule in asked:
        row = next(line for line in section.splitlines() if line.startswith("|") and f"`{option}" in line)
        assert f"`{rule}`" in row


def test_each_option_that_a_verdict_asks_for_is_there() -> None:
    for check, rules in ((WORKER_CHECK, worker_rules), (EXECUTOR_CHECK, executor_rules)):
        options = {flag for one in check.flat for flag in one.flags}
        asked = set(re.findall(r"(?:give|raise) (--[a-z-]+)", Path(str(rules.__file__)).read_text()))
        assert asked, "some rules need one"
        assert asked <= options


def test_every_path_of_a_model_is_there() -> None:
    for path in re.findall(r"`(orchestrix/[a-z_/]+\.py)`", CONTRACTS.read_text()):
        assert (ROOT / path).exists()
