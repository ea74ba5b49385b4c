"""Do the unit files start what the command line has?"""

from __future__ import annotations

import configparser
from pathlib import Path

import pytest

from app.cli.arguments import parse
from app.config import idle_variables

DEPLOY = Path(__file__).parents[3] / "deploy"
UNITS = sorted((DEPLOY / "systemd").iterdir())


def test_there_is_a_unit_for_each_role() -> None:
    assert [unit.name for unit in UNITS] == [
        "orchestrix-node.service",
        "orchestrix-upgrade.service",
        "orchestrix-worker@.service",
    ]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_starts_a_command_that_exists(unit: Path) -> None:
    read = configparser.ConfigParser(interpolation=None)
    read.read(unit)
    program, *arguments = read["Service"]["ExecStart"].split()
    assert program == "/opt/orchestrix/.venv/bin/orchestrix"
    assert callable(parse(arguments))


def test_the_example_settings_are_settings() -> None:
    lines = (DEPLOY / "orchestrix.env.example").read_text().splitlines()
    assert not idle_variables(dict(line.split("=", 1) for line in lines))
