"""Are packages installed without a daemon being started, and is the machine's policy left as it was?"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.servers import ensure
from tests.servers.ensure import SCRIPT, CannotInstall
from tests.support import eventually_sync

# Stands in for apt-get: notes its arguments and what the policy said meanwhile, fails as often as it is told.
APT = """#!/bin/sh
echo "apt-get $* frontend=$DEBIAN_FRONTEND" >>"$NOTES"
if [ -x "$POLICY_RC_D" ]; then "$POLICY_RC_D"; echo "policy $?" >>"$NOTES"; fi
case "$*" in *install*)
    if [ -e "$HANG" ]; then echo waiting >>"$NOTES"; read line <"$HANG"; fi
    if [ -s "$FAILURES" ]; then sed -i 1d "$FAILURES"; echo "E: no such mirror"; exit 100; fi ;;
esac
"""


class Machine:
    """A place with a fake apt-get."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.notes, self.policy, self.failures = root / "notes", root / "policy-rc.d", root / "failures"
        self.hang = root / "hang"
        (root / "apt-get").write_text(APT)
        (root / "apt-get").chmod(0o755)
        monkeypatch.setenv("PATH", f"{root}{os.pathsep}{os.environ['PATH']}")
        for name, path in {
            "NOTES": self.notes,
            "POLICY_RC_D": self.policy,
            "FAILURES": self.failures,
            "HANG": self.hang,
        }.items():
            monkeypatch.setenv(name, str(path))
        monkeypatch.setattr(ensure, "root_prefix", list)

    def noted(self) -> list[str]:
        return self.notes.read_text().splitlines() if self.notes.exists() else []


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_daemons_are_forbidden_while_packages_are_installed_and_only_then(machine: Machine) -> None:
    said: list[str] = []
    ensure.install(["rabbitmq-server", "postgresql"], said.append)
    assert "Installing rabbitmq-server, postgresql without starting their daemons" in said[0]
    update, forbidden, install, still = machine.noted()
    assert "update" in update
    assert "install rabbitmq-server postgresql frontend=noninteractive" in install
    assert forbidden == still == "policy 101"
    assert not machine.policy.exists()


def test_the_machines_own_policy_stays(machine: Machine) -> None:
    machine.policy.write_text("#!/bin/sh\nexit 104\n")
    machine.policy.chmod(0o755)
    ensure.install(["postgresql"])
    assert "policy 104" in machine.noted()
    assert machine.policy.read_text().endswith("exit 104\n")


def test_one_failure_is_tried_again(machine: Machine) -> None:
    machine.failures.write_text("once\n")
    ensure.install(["postgresql"])
    assert sum("install" in line for line in machine.noted()) == 2


def test_two_failures_are_an_error_that_shows_what_apt_said(machine: Machine) -> None:
    machine.failures.write_text("once\ntwice\n")
    with pytest.raises(CannotInstall, match="no such mirror"):
        ensure.install(["postgresql"])
    assert not machine.policy.exists()


def test_a_signal_removes_the_policy_too(machine: Machine) -> None:
    os.mkfifo(machine.hang)
    script = subprocess.Popen(["sh", str(SCRIPT), "postgresql"], start_new_session=True)
    eventually_sync(lambda: "waiting" in machine.noted(), deadline=10)
    assert machine.policy.exists()
    os.killpg(script.pid, signal.SIGTERM)
    assert script.wait(10) == 143
    assert not machine.policy.exists()
