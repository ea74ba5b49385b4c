"""Names: the words of the former dialect do not come back, and no class name stands twice in the library."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import PurePath
from typing import Final

import pytest

from tests.architecture.source import modules

FORMER: Final = frozenset(
    [
        "aside",
        "audience",
        "autopsy",
        "broom",
        "cast",
        "chronicle",
        "corpse",
        "crown",
        "deaf",
        "deed",
        "desk",
        "ear",
        "farewell",
        "floor",
        "footing",
        "giver",
        "graveyard",
        "handing",
        "hindrance",
        "holding",
        "journal",
        "lane",
        "mover",
        "nap",
        "orphanage",
        "perch",
        "poke",
        "repertoire",
        "reign",
        "seat",
        "seldom",
        "sow",
        "sweep",
        "taker",
        "taking",
        "triage",
        "unkept",
        "voice",
        "wakeup",
        "watchman",
    ]
)
"""Metaphors, without a plural's s. What they meant has a term of the field now: see docs/glossary.md."""


def words(name: str) -> set[str]:
    """The words of a CamelCase or snake_case name, in lower case and without a plural's s."""
    return {word.lower().removesuffix("s") for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def test_no_module_and_no_class_is_called_by_a_former_word() -> None:
    found = []
    for module in modules("orchestrix"):
        names = [
            PurePath(module.place).stem,
            *(one.name for one in ast.walk(module.tree) if isinstance(one, ast.ClassDef)),
        ]
        found += [f"{module.place}: {name}" for name in names if words(name) & FORMER]
    assert found == []


def test_a_class_name_stands_once_in_the_library() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for module in modules("orchestrix"):
        for one in module.tree.body:
            if isinstance(one, ast.ClassDef) and not one.name.startswith("_"):
                places[one.name].append(module.place)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_no_folder_has_more_than_eighteen_modules() -> None:
    count: dict[str, int] = defaultdict(int)
    for module in modules("orchestrix"):
        if not module.place.endswith("/__init__.py"):
            count[str(PurePath(module.place).parent)] += 1
    assert {folder: many for folder, many in count.items() if many > 18 and folder != "orchestrix/api"} == {}


@pytest.mark.parametrize(
    ("name", "former"), [("DeathDesk", True), ("sweeps", True), ("DeskTop", True), ("Risk", False)]
)
def test_a_former_word_is_seen(name: str, former: bool) -> None:
    assert bool(words(name) & FORMER) is former
