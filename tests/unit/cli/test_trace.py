"""Does `trace` find all traces of an instance, and say where to look where there are none?"""

from __future__ import annotations

from typing import Any

import pytest

from orchestrix.cli.commands import trace
from orchestrix.errors import NotFound
from tests.unit.cli.shell import Shell
from tests.unit.cli.test_waterfall import span

A, B, C, D = (letter * 32 for letter in "abcd")
NOT_HERE = "This node keeps no traces: look at https://tempo.example."


class Api:
    """Stands in for the client: one order, its history, and the traces that are kept."""

    def __init__(self) -> None:
        self.instance: dict[str, Any] = {"id": 1, "key": "A-1", "state": "COMPLETED", "traceId": A}
        self.history: list[str | None] = [A]
        self.traces: dict[str, list[dict[str, Any]]] = {A: [span(1, None, "first", 0, 10)]}
        self.none = NOT_HERE
        self.asked: list[str] = []

    def document(self, path: str) -> dict[str, Any]:
        self.asked.append(path)
        if path == "/sagas/order/1":
            return self.instance
        found = self.traces.get(path.removeprefix("/traces/"))
        if found is None:
            raise NotFound(self.none if path.startswith("/traces/") else "no such instance")
        return {"traceId": path.removeprefix("/traces/"), "spans": found}

    def page(self, path: str, query: dict[str, Any]) -> dict[str, Any]:
        assert path == "/sagas/order"
        return {"items": [self.instance] if query["q"] == "A-1" else []}

    def all_items(self, path: str) -> list[dict[str, Any]]:
        assert path == "/sagas/order/1/history"
        return [{"version": number, "traceId": one} for number, one in enumerate(self.history, 1)]


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    found = Api()
    monkeypatch.setattr(trace, "api_of", lambda _: found)
    return found


@pytest.mark.parametrize("name", ["1", "id:1", "A-1", "name:A-1"])
def test_an_instance_is_named_as_elsewhere(name: str, api: Api, shell: Shell) -> None:
    answer = shell("trace", name, "--saga", "order")
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert lines[0] == "order 1  A-1  COMPLETED"
    assert lines[1].startswith("1 trace, 1 span, ")
    assert lines[-1].endswith(" first")


@pytest.mark.parametrize("name", ["2", "name:none"])
def test_one_that_there_is_not_is_said_to_be_none(name: str, api: Api, shell: Shell) -> None:
    answer = shell("trace", name, "--saga", "order")
    assert answer.code != 0
    assert "no order instance" in answer.err


def test_all_traces_of_its_history_and_what_they_continue_are_joined(api: Api, shell: Shell) -> None:
    api.history = [A, None, B, B]
    api.traces |= {
        B: [span(2, None, "later", 500, 10, links=[(C, 3, "continued"), (D, 9, "batch")])],
        C: [span(3, None, "between", 200, 10, links=[(A, 1, "continued")])],
        D: [span(9, None, "another saga's", 300, 10)],
    }
    found = shell("trace", "1", "--saga", "order", "-o", "json").json
    assert [one["traceId"] for one in found["traces"]] == [A, B, C]
    assert found["missing"] == []
    assert len([one for one in api.asked if one.startswith("/traces/")]) == 3
    text = shell("trace", "1", "--saga", "order").out
    assert text.index("first") < text.index("between") < text.index("later")
    assert "another saga's" not in text


def test_traces_that_are_no_longer_kept_are_counted(api: Api, shell: Shell) -> None:
    api.history = [A, B, C]
    answer = shell("trace", "1", "--saga", "order")
    assert answer.code == 0
    assert answer.err.count("2 traces of it cannot be shown: This node keeps no traces") == 1
    assert shell("trace", "1", "--saga", "order", "-o", "json").json["missing"] == [B, C]


def test_where_no_trace_is_kept_the_api_says_where_to_look(api: Api, shell: Shell) -> None:
    api.traces = {}
    answer = shell("trace", "1", "--saga", "order")
    assert answer.code != 0
    assert NOT_HERE.rstrip(".") in answer.err
    assert answer.out == ""


def test_the_only_trace_is_named_in_full_where_it_is_unknown(api: Api, shell: Shell) -> None:
    api.traces, api.none = {}, f"There is no trace {A} here"
    assert f"There is no trace {A} here" in shell("trace", "1", "--saga", "order").err


def test_without_any_trace_it_says_what_to_install(api: Api, shell: Shell) -> None:
    api.instance["traceId"], api.history = None, [None]
    answer = shell("trace", "1", "--saga", "order")
    assert answer.code != 0
    assert "orchestrix-sagas[otel]" in answer.err


def test_a_history_of_many_traces_is_bounded(api: Api, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MAX_TRACES", 5)
    ids = [f"{number:032x}" for number in range(1, 20)]
    api.history = [*ids]
    api.traces |= {one: [span(1, None, "one", 0, 1)] for one in ids}
    found = shell("trace", "1", "--saga", "order", "-o", "json").json
    assert [one["traceId"] for one in found["traces"]] == [A, *ids[:4]]
    assert found["missing"] == ids[4:]
    assert (
        "15 traces of it cannot be shown: only the first 5 are looked at"
        in shell("trace", "A-1", "--saga", "order").err
    )


def test_many_spans_are_shown_by_an_option(api: Api, shell: Shell) -> None:
    api.traces[A] = [span(number, None, "one", number, 1) for number in range(1, 301)]
    shown = shell("trace", "1", "--saga", "order").out.splitlines()
    assert len([line for line in shown if line.endswith(" one")]) == 200
    assert shown[-1] == "100 more spans: --all shows them"
    shown = shell("trace", "1", "--saga", "order", "--all").out.splitlines()
    assert len([line for line in shown if line.endswith(" one")]) == 300
