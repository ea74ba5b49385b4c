"""Does no saga take another's charge, after a restore of yesterday's database, and beside another installation?"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.processes import Processes
from tests.support import NO_TLS, free_port

SALES = '''
import hashlib, os, pathlib
from pydantic import BaseModel
from orchestrix import COMPLETED, Command, Compensation, NothingToUndo, Saga, Step
from orchestrix import Context, Permanent, handles

PROVIDER = pathlib.Path(os.environ["PROVIDER"])

class Sale(BaseModel):
    shipped: bool = True
    charge: str | None = None

REFUND = Compensation("cmd.refund", "evt.refunded")
SALE = Saga(name="sale", data=Sale, steps=(
    Step("pay", "PAYING", "cmd.pay", "evt.paid", "SHIPPING", REFUND),
    Step("ship", "SHIPPING", "cmd.ship", "evt.shipped", COMPLETED, NothingToUndo("it is the last")),
))

def place(context):
    return PROVIDER / hashlib.sha256(context.effect_key.encode()).hexdigest()

@handles("cmd.pay")
def pay(context: Context, command: Command):
    """As a payment provider does it: one key, one charge, and who comes again is told of the first."""
    try:
        with place(context).open("x") as made:
            made.write(context.correlation_id)
    except FileExistsError:
        pass
    return {"charge": place(context).read_text()}

@handles("cmd.refund")
def refund(context: Context, command: Command):
    place(context).unlink(missing_ok=True)

@handles("cmd.ship")
def ship(context: Context, command: Command):
    if not command.data["shipped"]:
        raise Permanent("NoStock", "there is none left")
'''


class Shop:
    """A folder with a `dev` that comes and goes, and a payment provider that may be shared."""

    def __init__(self, processes: Processes, folder: Path, provider: Path) -> None:
        self._processes, self.folder = processes, folder
        folder.mkdir()
        provider.mkdir(exist_ok=True)
        (folder / "sales.py").write_text(SALES)
        own = {"ORCHESTRIX_SAGAS": "sales", "ORCHESTRIX_WORKERS": "sales", "PROVIDER": str(provider)}
        self._env = {**own, "ORCHESTRIX_GIT__PROVIDER": "none", "ORCHESTRIX_REGISTRATION__PROVIDER": "none"}

    @contextmanager
    def open(self) -> Iterator[httpx.Client]:
        """Its API, while its `dev` runs; the broker forgets all at the end."""
        dev = self._processes.spawn("dev", "--port", str(free_port()), cwd=self.folder, env=self._env)
        dev.wait_for_line_sync("^Ready in")
        url = json.loads((self.folder / ".orchestrix" / "dev.json").read_text())["apiUrl"]
        with httpx.Client(base_url=url, timeout=30, trust_env=False, verify=NO_TLS) as client:
            yield client
        dev.terminate()
        dev.exited_sync()

    @property
    def database(self) -> Path:
        return self.folder / ".orchestrix" / "orchestrix.db"

    def backup(self, to: Path) -> None:
        source, copy = sqlite3.connect(self.database), sqlite3.connect(to)
        source.backup(copy)
        for one in (source, copy):
            one.close()

    def restore(self, backup: Path) -> None:
        for leftover in self.database.parent.glob("orchestrix.db*"):
            leftover.unlink()
        shutil.copy(backup, self.database)


def sell(api: httpx.Client, key: str, **data: Any) -> dict[str, Any]:
    """A sale that has ended."""
    answer = api.post("/sagas/sale", json={"key": key, "createdBy": "ada", "data": data})
    assert answer.status_code == 200, answer.text
    seen: dict[str, Any] = answer.json()
    while seen["state"] not in ("COMPLETED", "FAILED"):
        found = api.get(f"/sagas/sale/{seen['id']}", params={"wait": "20s", "sinceVersion": seen["version"]}).json()
        assert found["version"] > seen["version"], f"nothing moved within 20 s: {found}"
        seen = found
    return seen


def check_own_charge(sale: dict[str, Any]) -> None:
    assert sale["data"]["charge"] == sale["correlationId"], "it took somebody else's charge"


def charges(provider: Path) -> set[str]:
    return {made.read_text() for made in provider.iterdir()}


def test_no_saga_takes_anothers_charge_after_yesterdays_database_was_restored(
    processes: Processes, tmp_path: Path
) -> None:
    provider, backup = tmp_path / "provider", tmp_path / "yesterday.db"
    shop = Shop(processes, tmp_path / "shop", provider)
    with shop.open() as api:
        before = [sell(api, f"yesterday-{number}") for number in range(2)]
    shop.backup(backup)
    with shop.open() as api:
        lost = [sell(api, f"today-{number}") for number in range(2)]
    shop.restore(backup)
    with shop.open() as api:
        after = [sell(api, f"after-{number}") for number in range(2)]
        undone = sell(api, "undone", shipped=False)
    assert [one["id"] for one in after] == [one["id"] for one in lost], "their ids were given again"
    for one in (*before, *lost, *after):
        check_own_charge(one)
    assert undone["state"] == "FAILED"
    assert charges(provider) == {one["correlationId"] for one in (*before, *lost, *after)}


def test_two_installations_share_a_payment_provider(processes: Processes, tmp_path: Path) -> None:
    provider = tmp_path / "provider"
    first, second = (Shop(processes, tmp_path / name, provider) for name in ("first", "second"))
    with first.open() as api:
        here = [sell(api, "one"), sell(api, "two")]
    with second.open() as api:
        there = [sell(api, "one"), sell(api, "two", shipped=False)]
    assert [one["id"] for one in here] == [one["id"] for one in there]
    for one in (*here, *there):
        check_own_charge(one)
    assert charges(provider) == {one["correlationId"] for one in (*here, there[0])}


def test_a_copy_that_was_reset_charges_for_itself(processes: Processes, tmp_path: Path) -> None:
    provider, backup = tmp_path / "provider", tmp_path / "copy.db"
    shop, copy = (Shop(processes, tmp_path / name, provider) for name in ("shop", "copy"))
    with shop.open() as api:
        done = sell(api, "one")
    shop.backup(backup)
    (copy.folder / ".orchestrix").mkdir()
    copy.restore(backup)
    url = {"ORCHESTRIX_DATABASE_URL": f"sqlite+aiosqlite:///{copy.database}"}
    reset = processes.run("db", "clone-reset", "--yes", "-o", "json", env=url, cwd=copy.folder)
    assert reset.returncode == 0, reset.stderr
    with copy.open() as api:
        own = sell(api, "two")
    check_own_charge(own)
    assert charges(provider) == {done["correlationId"], own["correlationId"]}
