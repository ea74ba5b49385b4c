"""Is what the README says still so?"""

from __future__ import annotations

import functools
import re
import shlex

import pytest

from orchestrix.cli.arguments import parse
from orchestrix.config.settings import PREFIX, Settings, names
from orchestrix.saga.diagram import to_mermaid
from sagas.app_provisioning import APP_PROVISIONING
from tests.documents import README, ROOT, block, blocks, filled, parts
from workers.app_registration import RegistrationSettings
from workers.git_repo import GitSettings

TEXT = README.read_text()
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()


def test_generated_part_is_what_the_code_says() -> None:
    assert parts(README) == ["saga:app"]
    assert filled(TEXT) == TEXT, "write it anew: python -m tests.documents"


def test_diagram_of_the_readme_is_that_of_the_table() -> None:
    assert blocks(README, "mermaid") == [to_mermaid(APP_PROVISIONING)]


def test_every_step_of_the_saga_is_in_its_table() -> None:
    for step in APP_PROVISIONING.steps:
        assert f"| {step.name} | {step.state} | `{step.command}` | `{step.event}` | {step.then} |" in TEXT


def test_readme_is_short() -> None:
    assert len(TEXT.splitlines()) <= 200


def test_links_lead_to_files() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert links
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


def shell_lines() -> list[str]:
    """Every command of the shell blocks, without its comment."""
    text = "".join(blocks(README, "sh")).replace("\\\n", " ")
    return [line.split(" # ")[0].strip() for line in text.splitlines() if line.strip()]


def test_make_targets_exist() -> None:
    targets = [line.split()[1] for line in shell_lines() if line.startswith("make ")]
    assert targets == ["dev", "test"]
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def orchestrix_lines() -> list[str]:
    """Every `orchestrix …` of the shell blocks."""
    return [line[line.index("orchestrix ") :] for line in shell_lines() if re.match(r"(\w+=\S+ )*orchestrix ", line)]


@pytest.mark.parametrize("line", orchestrix_lines())
def test_commands_exist(line: str) -> None:
    assert isinstance(parse(shlex.split(line)[1:]), functools.partial), "it is a command, and no call for help"


def test_commands_were_found() -> None:
    assert {line.split()[1] for line in orchestrix_lines()} == {"apps", "worker", "dev", "db", "serve"}


def settings_rows() -> dict[str, str]:
    """Each variable of the settings table and the default that stands beside it."""
    found: dict[str, str] = {}
    for variables, defaults in re.findall(r"^\| (`ORCHESTRIX_.*?) \| (.*?) ?\| .* \|$", OPERATIONS, re.MULTILINE):
        named = re.findall(r"`(\w+)`", variables)
        said = [one.strip().strip("`") for one in defaults.split(",")] if defaults else [""] * len(named)
        found |= dict(zip(named, said, strict=True))
    return found


def test_settings_table_is_complete_and_right() -> None:
    expected = {"ORCHESTRIX_CONFIG": ""}
    for section, model in (("GIT", GitSettings()), ("REGISTRATION", RegistrationSettings())):
        expected |= {f"{PREFIX}{section}__{name.upper()}": str(value) for name, value in model}
    for name in names():
        value = Settings().value_of(name)
        expected[PREFIX + name.upper().replace(".", "__")] = "" if value in (None, (), {}) else str(value)
    assert settings_rows() == expected


def test_python_of_the_readme_compiles() -> None:
    for code in blocks(README, "python"):
        compile(code, "README.md", "exec")
    assert len(blocks(README, "python")) == 2


def test_foreign_worker_imports_nothing_of_ours() -> None:
    imports = re.findall(r"^(?:import|from) (\w+)", block(README, "python", "import pika"), re.MULTILINE)
    assert imports == ["json", "pathlib", "sys", "pika"]
