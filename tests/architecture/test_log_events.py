"""Does each line of sagas and workers name its event, by a name of the catalogue, and is each name used?"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator

from orchestrix.telemetry import log_events
from tests.architecture.source import Module, modules
from tests.documents import OBSERVABILITY, filled, parts

CATALOGUE = {name: value for name, value in vars(log_events).items() if name.isupper()}
"""The names by their constants."""
PLACES = ("orchestrix/engine/", "orchestrix/outbox/", "orchestrix/worker/")
"""Where lines are of sagas and workers."""
LEVELS = {"info", "warning", "error", "exception", "critical"}
WITH_EVENT = re.compile(r"log_events\.[A-Z_]+\b|failure_fields\(")
"""The fields of a line have an event; `failure_fields` has one of its own."""


def calls(module: Module) -> Iterator[tuple[int, ast.Call, str]]:
    """The line number, the call and the enclosing function's source of each line of log at info and above."""
    for function in ast.walk(ast.parse(module.text)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            source = ast.get_source_segment(module.text, function) or ""
            for node in ast.walk(function):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and isinstance(node.func.value, ast.Name)
                    and node.func.value.id in ("log", "LOGGER")
                    and node.func.attr in LEVELS
                ):
                    yield node.lineno, node, source


def event_of(call: ast.Call, source: str) -> str | None:
    """What its fields are made of, where that names an event."""
    (extra,) = [ast.unparse(one.value) for one in call.keywords if one.arg == "extra"] or [""]
    if extra.isidentifier():
        extra = "; ".join(re.findall(rf"{extra} (?:= |\|= )(.*(?:\n.*)?)", source))
        extra = "log_events.X" if "_fields(" in extra else extra
    return extra if WITH_EVENT.search(extra) else None


def test_each_line_of_sagas_and_workers_names_its_event() -> None:
    seen = [
        (f"{module.place}:{line}", event_of(call, source))
        for module in modules("orchestrix")
        if module.place.startswith(PLACES)
        for line, call, source in calls(module)
    ]
    assert len(seen) > 40
    assert [place for place, event in seen if event is None] == []


def test_no_other_name_is_used_and_each_name_is() -> None:
    used = set[str]()
    for module in modules("orchestrix"):
        if module.place != "orchestrix/telemetry/log_events.py":
            named = re.findall(r"log_events\.([A-Z_]+)\b", module.text)
            imported = re.findall(r"from orchestrix\.telemetry\.log_events import ([A-Z_, ]+)", module.text)
            used |= {*named, *(name.strip() for names in imported for name in names.split(","))}
            assert re.findall(r"\"event\": *(\"[^\"]*\"|f\")", module.text) == [], module.place
    assert used == set(CATALOGUE)


def test_names_are_unique_and_described() -> None:
    assert len(set(CATALOGUE.values())) == len(CATALOGUE)
    assert all(re.fullmatch(r"[a-z]+(\.[a-z_]+)+", name) for name in CATALOGUE.values())
    described = dict(
        re.findall(r"^([A-Z_]+): Final = .*\n\"\"\"(.+)\"\"\"$", inspect.getsource(log_events), re.MULTILINE)
    )
    assert set(described) == set(CATALOGUE)


def test_the_documents_list_all_of_them() -> None:
    text = OBSERVABILITY.read_text()
    assert parts(OBSERVABILITY) == ["metrics", "alerts", "log:events"]
    assert filled(text) == text, "write it anew with `python -m tests.documents`"
    assert re.findall(r"^\| `([a-z_.]+)` \|", text[text.index("log:events") :], re.MULTILINE) == list(
        CATALOGUE.values()
    )
