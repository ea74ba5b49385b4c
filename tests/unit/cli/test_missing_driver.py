"""What do the commands say where the driver of the database was not installed?"""

from __future__ import annotations

import sys

import pytest

from orchestrix.cli.doctor import command as doctor
from tests.unit.cli.shell import Shell

DATABASES = [
    ("postgresql+asyncpg://u:geheim@127.0.0.1:1/d", "asyncpg", "postgresql"),
    ("mysql+asyncmy://u:geheim@127.0.0.1:1/d", "asyncmy", "mysql"),
]


@pytest.fixture(params=DATABASES, ids=lambda database: database[0].partition(":")[0])
def extra(request: pytest.FixtureRequest, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> str:
    """The extra that would bring the driver of the database that the settings name."""
    url, module, extra = request.param
    monkeypatch.setitem(sys.modules, module, None)
    shell.set(ORCHESTRIX_DATABASE_URL=url, ORCHESTRIX_BROKER_URL="amqp://127.0.0.1:1/")
    return str(extra)


@pytest.mark.parametrize(
    "command",
    [("db", "upgrade"), ("db", "current"), ("db", "check"), ("db", "clone-reset"), ("serve",), ("worker",)],
    ids=" ".join,
)
def test_the_extra_is_named(shell: Shell, extra: str, command: tuple[str, ...]) -> None:
    answer = shell(*command)
    assert answer.code == 2, answer.err
    last = answer.err.splitlines()[-1]
    assert last.startswith("error: the driver for ")
    assert last.endswith(f"run pip install 'orchestrix-sagas[{extra}]'")
    assert "Traceback" not in answer.err
    assert "geheim" not in answer.err


def test_doctor_names_it_too(shell: Shell, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "BROKER_TIMEOUT_S", 0.1)  # there is no broker either
    answer = shell("doctor", "-o", "json")
    assert answer.code == 1
    (database,) = (check for check in answer.json["checks"] if check["what"] == "database")
    assert database["status"] == "fail"
    assert database["detail"].endswith(f"run pip install 'orchestrix-sagas[{extra}]'")
