"""Do the examples of the page about services work, in the service that `orchestrix init` writes?"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrix.cli import init
from tests.documents import ROOT, block

SERVICE = ROOT / "docs" / "service.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The template, with the file, the settings and the resource of the page."""
    for path in init.TEMPLATE.rglob("*.tmpl"):
        place = tmp_path / path.relative_to(init.TEMPLATE).with_suffix("")
        place.parent.mkdir(exist_ok=True)
        place.write_text(path.read_text())
    (tmp_path / "orchestrix.toml").write_text(block(SERVICE, "toml", "sagas = ["))
    worker = tmp_path / "shop" / "worker.py"
    worker.write_text(f"{worker.read_text()}\n\n{block(SERVICE, 'python', 'SETTINGS = ')}")
    (tmp_path / "shop" / "api.py").write_text(block(SERVICE, "python", "Resource(ORDER"))
    return tmp_path


def run(folder: Path, *words: str) -> Any:
    """What `orchestrix …` prints in that folder."""
    ended = subprocess.run(
        [sys.executable, "-m", "orchestrix", *words], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert ended.stdout, ended.stderr
    return json.loads(ended.stdout)


def test_its_modules_can_be_used(folder: Path) -> None:
    told = {one["what"]: one for one in run(folder, "doctor", "-o", "json")["checks"]}
    assert not {"settings", "sagas", "workers", "resources"} & {
        what for what, one in told.items() if one["status"] == "fail"
    }, told
    assert (told["mail"]["status"], told["mail"]["detail"]) == ("ok", "sends by mx.example.org")


def test_its_resource_is_served(folder: Path) -> None:
    document = run(folder, "openapi")
    assert {"/orders", "/orders/{id}"} <= document["paths"].keys()
    assert {"orderNumber", "item", "amount"} <= document["components"]["schemas"]["NewOrder"]["properties"].keys()


def test_every_example_of_it_is_tried() -> None:
    blocks = SERVICE.read_text().count("```python")
    assert blocks == 2
