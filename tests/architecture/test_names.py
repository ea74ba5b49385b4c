"""Names and texts: the words of the former dialect do not come back, and no class name stands twice in the library."""

from __future__ import annotations

import ast
import inspect
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
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

FORMER_OF_CODE: Final = (FORMER - {"cast", "holding"}) | frozenset(
    [
        "alone",
        "astray",
        "beaten",
        "bid",
        "bring",
        "bringing",
        "buried",
        "bury",
        "condemn",
        "crew",
        "crowd",
        "dice",
        "drainer",
        "ease",
        "exhume",
        "greet",
        "halt",
        "hear",
        "heed",
        "hopeless",
        "hurry",
        "insist",
        "jolt",
        "landed",
        "lately",
        "letter",
        "look",
        "looked",
        "mend",
        "mended",
        "mint",
        "mute",
        "nudge",
        "obey",
        "office",
        "owe",
        "owed",
        "pace",
        "passage",
        "patience",
        "plot",
        "remade",
        "resend",
        "right",
        "said",
        "scene",
        "sever",
        "shed",
        "sift",
        "sole",
        "speak",
        "spoken",
        "stillborn",
        "strange",
        "stranger",
        "stubborn",
        "surrounding",
        "tell",
        "tend",
        "tending",
        "thaw",
        "thing",
        "told",
        "unbegun",
        "unheard",
        "unworked",
        "wave",
        "worn",
    ]
)
"""The same for functions, methods, parameters and attributes: they say `notify`, `publish`, `poll`, `problem`."""

PLAIN: Final = ("dead_letter", "deadLetter", "hindered", "set_aside", "said_at")
"""Terms that hold such a word: the field's own, plain English, or a column's."""


FORMER_NAMES: Final = re.compile(
    r"""
    send_again | send_all | hand(?:ed)?_over | held_by | held_again | held_up | any_held | life_sign | grant_for
    """,
    re.VERBOSE,
)
"""Names in several words. It is `redispatch`, `hand_off`, `defer`, `queued`, `permissions_command`, `stopping`."""

HOMES: Final = {
    "overdue": ("orchestrix/engine/explain/", "orchestrix/persistence/sagas/"),
    "held": (
        "orchestrix/saga/",
        "orchestrix/engine/",
        "orchestrix/bootstrap/engine.py",
        "orchestrix/persistence/sagas/",
        "orchestrix/persistence/schema/",
        "orchestrix/testing/",
    ),
    "handover": ("orchestrix/api/cluster/", "orchestrix/persistence/cluster/"),
}
"""Words of one meaning, with the only places that name things by them: a wake-up that no node has processed, a step or
an event that waits for a person or a version, a change of leader. Elsewhere it is timed out, late, queued, in flight,
hand-off.
"""


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


def names_of_code(tree: ast.AST) -> Iterator[str]:
    """Every function and method, parameter and attribute that the module makes."""
    for one in ast.walk(tree):
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            yield one.name
            yield from (arg.arg for arg in (*one.args.posonlyargs, *one.args.args, *one.args.kwonlyargs))
        elif isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store):
            yield one.attr
        elif isinstance(one, ast.ClassDef):
            yield from (
                field.target.id
                for field in one.body
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            )


def former_words(name: str) -> set[str]:
    """The words of the dialect in the name of a function, parameter or attribute."""
    for plain in PLAIN:
        name = name.replace(plain, "")
    return words(name) & FORMER_OF_CODE or set(FORMER_NAMES.findall(name))


def strays(place: str, tree: ast.AST) -> Iterator[str]:
    """What has a word in its name that belongs to other modules."""
    classes = (one.name for one in ast.walk(tree) if isinstance(one, ast.ClassDef))
    for name in (PurePath(place).stem, *classes, *names_of_code(tree)):
        yield from (name for word in words(name) if not place.startswith(HOMES.get(word, "")))


def test_a_word_of_one_meaning_stays_where_it_has_that_meaning() -> None:
    found = {
        f"{module.place}: {name}" for module in modules("orchestrix") for name in strays(module.place, module.tree)
    }
    assert sorted(found) == []


@pytest.mark.parametrize(
    ("place", "code", "found"),
    [
        ("orchestrix/jobs/x.py", "def overdue() -> None: ...", True),
        ("orchestrix/jobs/x.py", "class A:\n    def __init__(self) -> None:\n        self._held = 1", True),
        ("orchestrix/jobs/x.py", "class JobHandover: ...", True),
        ("orchestrix/jobs/handovers.py", "", True),
        ("orchestrix/jobs/x.py", "def hand_off() -> None: ...", False),
        ("orchestrix/engine/explain/x.py", "def overdue() -> None: ...", False),
        ("orchestrix/saga/x.py", "class A:\n    held: int", False),
    ],
)
def test_a_word_outside_of_its_home_is_seen(place: str, code: str, found: bool) -> None:
    assert bool(list(strays(place, ast.parse(code)))) is found


def test_no_function_parameter_or_attribute_is_called_by_a_former_word() -> None:
    found = {
        f"{module.place}: {name}"
        for module in modules("orchestrix")
        for name in names_of_code(module.tree)
        if former_words(name)
    }
    assert sorted(found) == []


@pytest.mark.parametrize(
    ("code", "former"),
    [
        ("def poke() -> None: ...", True),
        ("class A:\n    async def _look_again(self) -> None: ...", True),
        ("def run(*, told: object) -> None: ...", True),
        ("class A:\n    def __init__(self, desk: object) -> None:\n        self.x = desk", True),
        ("class A:\n    def __init__(self, x: object) -> None:\n        self._desk = x", True),
        ("class A:\n    letters: int", True),
        ("class A:\n    dead_letters: int", False),
        ("def set_aside(said_at: int) -> None: ...", False),
        ("def outlook(seats: int) -> None: ...", True),
        ("def outlook() -> None: ...", False),
        ("async def send_again() -> None: ...", True),
        ("class A:\n    async def hand_over(self) -> None: ...", True),
        ("async def hand_off() -> None: ...", False),
        ("def run(*, alone: bool) -> None: ...", True),
    ],
)
def test_a_former_word_of_code_is_seen(code: str, former: bool) -> None:
    assert any(former_words(name) for name in names_of_code(ast.parse(code))) is former


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
    assert {folder: many for folder, many in count.items() if many > 18} == {}


@pytest.mark.parametrize(
    ("name", "former"), [("DeathDesk", True), ("sweeps", True), ("DeskTop", True), ("Risk", False)]
)
def test_a_former_word_is_seen(name: str, former: bool) -> None:
    assert bool(words(name) & FORMER) is former


FORMER_PHRASES: Final = re.compile(
    r"""
    \bmend | \bin\ hand\b | \bnobody\b | \bsomebody\b | \banybody\b | \bgoes\ on\b | \banew\b | \bforesaw\b
    | (?<![._])\bbeats?\b | (?<!/)\borders\b | \border\ for\b | (?<!dead\ )(?<!dead-)\bletters?\b(?!,|\ or)
    | \btold\b | \btells?\b | \bwords?\ (?:of|to|is|are)\b | \b(?:is|are)\ out\b(?!\ of) | \bout\ at\b | \bat\ work\b
    | \bheard\b | \bpokes?\b | \bthe\ lead\b | \bleft\ (?:behind|alone)\b | \bstands?\ still\b | \blost\ its\ memory\b
    | \bis\ wanted\b | \bits\ time\ (?:is|was)\ over\b | \bdeath\ watch\b | \bhousekeeping\b | \bwake-ups\b
    | \bgo(?:ing)?\ on\b(?!\ to) | \bhears?\b | \bwithout\ a\ word\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
"""What log lines, errors, explanations, names of loops, docstrings and comments do not say: see docs/glossary.md."""
LOG_CALLS: Final = {"debug", "info", "warning", "error", "exception", "critical", "log"}
NAMED_CALLS: Final = {"Loop", "PeriodicDuty", "DelayedService", "stop_stage", "StepError", "AttemptEnding", "_later"}
EXPLANATIONS: Final = ("orchestrix/engine/explain/", "orchestrix/domain/job_diagnosis.py")
"""Modules all of whose texts are read by people."""
FORMER_OF_PROSE: Final = FORMER - {"aside", "cast", "taking"}
"""What docstrings and comments do not say: commands are set aside, values cast, jobs taken."""
CODE_IN_PROSE: Final = re.compile(r"`[^`]*`|^ {4,}\S.*$|\S+=\S+", re.MULTILINE)
"""Names, and examples, which are indented, are no prose."""


def texts(place: str, tree: ast.AST) -> list[str]:
    """The texts of the source that people read: of log calls, raised errors, named loops and explanations."""
    if place.startswith(EXPLANATIONS):
        found: list[ast.AST] = [
            one for one in ast.walk(tree) if isinstance(one, ast.Return | ast.Assign | ast.AnnAssign)
        ]
    else:
        found = [one for one in ast.walk(tree) if isinstance(one, ast.Raise) or _is_told(one)]
    parts = (part for one in found for part in ast.walk(one) if isinstance(part, ast.Constant))
    return [part.value for part in parts if isinstance(part.value, str)]


def _is_told(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name):
        return node.func.id in NAMED_CALLS
    return isinstance(node.func, ast.Attribute) and node.func.attr in LOG_CALLS


def test_no_text_for_people_has_a_former_phrase() -> None:
    found = [
        f"{module.place}: {text}"
        for module in modules("orchestrix", "app", "sagas", "workers")
        for text in texts(module.place, module.tree)
        if FORMER_PHRASES.search(text)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "former"),
    [
        ('log.warning("wake-ups waits: %s", away)', True),
        ('LOGGER.error("nobody can say whether %s has more time", job)', True),
        ('raise Unavailable(f"orders of {queue} were lost")', True),
        ('Loop("beats of workers", work)', True),
        ('raise ConflictError("a locked row was changed by somebody else")', True),
        ('log.info("the letter of %s", queue)', True),
        ('log.info("%s dead letters, %d heartbeats", queue, beats)', False),
        ('raise ConfigError("jobs.beat must be a letter, then letters, digits or dots")', False),
        ('KEY = "orders of workers"', False),
    ],
)
def test_a_former_phrase_is_seen_in_texts_for_people_alone(source: str, former: bool) -> None:
    assert any(FORMER_PHRASES.search(text) for text in texts("orchestrix/x.py", ast.parse(source))) is former


def prose(source: str) -> Iterator[str]:
    """The docstrings, those of attributes too, and the comments, without the code in them."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield CODE_IN_PROSE.sub("", inspect.cleandoc(node.value.value))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield CODE_IN_PROSE.sub("", token.string)


def former_of_prose(source: str) -> Iterator[str]:
    """The texts of the source that have a former word or phrase."""
    return (text for text in prose(source) if FORMER_PHRASES.search(text) or words(text) & FORMER_OF_PROSE)


def test_no_docstring_and_no_comment_has_a_former_word() -> None:
    found = [
        f"{module.place}: {text}"
        for module in modules("orchestrix", "app", "sagas", "workers")
        for text in former_of_prose(module.text)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "former"),
    [
        ('"""Rescue: finds jobs that nobody runs any more."""', True),
        ('class A:\n    """A seat."""', True),
        ('def run() -> None:\n    """Runs.\n\n    `stop` tells workers.\n    """', True),
        ('LIMIT = 1\n"""The length of a nap."""', True),
        ("go()  # the worker hears of it later", True),
        ('"""Collector: stores dead letters."""', False),
        ('"""Runs.\n\n    given(ORDER, handlers=orders)\n\n`beat` is in seconds.\n"""', False),
        ("go()  # the command is set aside; see `seat`", False),
        ('SEAT = "nobody has a seat"', False),
    ],
)
def test_a_former_word_is_seen_in_docstrings_and_comments(source: str, former: bool) -> None:
    assert any(former_of_prose(source)) is former
