"""Do the unit files start what the command line has?"""

from __future__ import annotations

import configparser
from pathlib import Path
from typing import Final

import pytest

from orchestrix.bootstrap.dev_worker import WORKER_STOP_GRACE_S
from orchestrix.cli.arguments import parse
from orchestrix.config.settings import Settings, idle_variables
from orchestrix.lifecycle import CLOSE_TIMEOUT_S, EXIT_GRACE_S
from orchestrix.node import open_node
from orchestrix.server import RESIGN_TIMEOUT_S, STOP_HTTP_TIMEOUT_S, STOP_NODE_TIMEOUT_S
from orchestrix.telemetry.sinks import FLUSH_TIMEOUT_S
from tests.documents import FILES

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
CONFIG: Final = "/opt/orchestrix/orchestrix.toml"
UNITS = sorted((DEPLOY / "systemd").iterdir())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_files_that_are_made_from_the_code_are_what_it_says(file: Path) -> None:
    assert file.read_text() == FILES[file](), "write it anew: python -m tests.documents"


def test_there_is_a_unit_for_each_role() -> None:
    assert [unit.name for unit in UNITS] == [
        "orchestrix-node.service",
        "orchestrix-upgrade.service",
        "orchestrix-worker@.service",
    ]


def service(name: str) -> configparser.SectionProxy:
    """What the unit says about its process."""
    read = configparser.ConfigParser(interpolation=None)
    read.read(DEPLOY / "systemd" / name)
    return read["Service"]


LAST: Final = 2 * EXIT_GRACE_S + FLUSH_TIMEOUT_S
"""Seconds for threads that do not end, and for the log."""


def test_systemd_waits_longer_than_a_node_takes_to_end() -> None:
    settings = Settings(database_url="sqlite+aiosqlite:///x.db")
    node = open_node(settings, frozenset({"api", "orchestrator", "coordinator"}), "amqp://localhost/")
    limits = RESIGN_TIMEOUT_S + node.leave_limit_s + STOP_HTTP_TIMEOUT_S + CLOSE_TIMEOUT_S + STOP_NODE_TIMEOUT_S + LAST
    assert node.leave_limit_s > settings.cluster.handoff_hard
    assert limits < int(service("orchestrix-node.service")["TimeoutStopSec"]) <= 1.2 * limits


def test_systemd_waits_longer_than_a_worker_takes_to_end() -> None:
    limits = Settings().worker.stop_timeout + WORKER_STOP_GRACE_S + 3 * CLOSE_TIMEOUT_S + LAST
    assert limits < int(service("orchestrix-worker@.service")["TimeoutStopSec"]) <= 1.2 * limits


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_starts_a_command_that_exists(unit: Path) -> None:
    program, *arguments = service(unit.name)["ExecStart"].split()
    assert program == "/opt/orchestrix/.venv/bin/orchestrix"
    assert callable(parse(arguments))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_names_the_service_and_lets_the_settings_name_another(unit: Path) -> None:
    # systemd: what the file says overrides what the unit says.
    assert service(unit.name)["Environment"] == f"ORCHESTRIX_CONFIG={CONFIG}"
    assert service(unit.name)["EnvironmentFile"] == "/etc/orchestrix.env"


def test_the_service_is_that_of_the_checkout() -> None:
    assert (ROOT / Path(CONFIG).relative_to("/opt/orchestrix")).is_file()


def test_the_example_settings_are_settings() -> None:
    variables = dict(line.split("=", 1) for line in (DEPLOY / "orchestrix.env.example").read_text().splitlines())
    assert variables["ORCHESTRIX_CONFIG"] == CONFIG
    assert not idle_variables(variables)
