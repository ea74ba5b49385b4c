"""Do tables line up, and does nothing in them steer the terminal?"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable

import pytest

from orchestrix.cli import output


class Stdout(io.TextIOWrapper):
    """Standard output with an encoding, on a terminal or not."""

    def __init__(self, encoding: str = "utf-8", terminal: bool = False) -> None:
        super().__init__(io.BytesIO(), encoding, errors="backslashreplace", newline="")
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def test_columns_line_up_whatever_the_width_of_their_letters() -> None:
    text = output.table(("NAME", "BY"), [("日本", "ada"), ("e\u0301🚀", "bob"), ("plain", None)])
    lines = text.splitlines()
    assert [output.width(line[: -len(line.split()[-1])]) for line in lines] == [7, 7, 7, 7]
    assert lines[-1].split() == ["plain", "-"]


def test_control_characters_are_shown_and_not_obeyed() -> None:
    shown = output.cell("a\x1b[31m\r\n\u202eb\u2028\ud800")
    assert shown == "a\\x1b[31m\\r\\n\\u202eb\\u2028\\ud800"
    assert output.cell({"k": "\x1b"}) == '{"k": "\\u001b"}'
    assert output.cell("👨\u200d👩") == "👨\u200d👩"


STEERING = [chr(code) for code in (*range(0x7F, 0xA0), 0x1B, 0xAD, 0x61C, 0x200B, 0x200E, 0x200F, 0xFEFF, 0xE0001)] + [
    chr(code) for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x2028, 0x2029, 0xFFF9)
]


@pytest.mark.parametrize("say", [output.print_json, output.print_json_line])
def test_nothing_in_a_document_steers_the_terminal(
    monkeypatch: pytest.MonkeyPatch, say: Callable[[object], None]
) -> None:
    out = Stdout(terminal=True)
    monkeypatch.setattr(sys, "stdout", out)
    value = {f"key{char}": [f"a{char}b", {"é日👨\u200d👩": char}] for char in STEERING}
    say(value)
    out.flush()
    written = out.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert json.loads(written) == value
    assert not [char for char in STEERING if char in written]
    assert "é日👨\u200d👩" in written, "what is harmless is readable"


def test_nothing_in_a_table_steers_the_terminal() -> None:
    shown = output.table(("A", "B"), [(char, {"k": [char]}) for char in STEERING])
    assert not [char for char in STEERING if char in shown]


def test_values_of_every_kind() -> None:
    values: list[object] = [None, True, False, 0, 1.5, []]
    assert [output.cell(value) for value in values] == ["-", "yes", "no", "0", "1.5", "[]"]


def test_an_empty_table_has_its_head() -> None:
    assert output.table(("ID", "NAME"), []) == "ID  NAME"


@pytest.mark.parametrize(
    ("terminal", "variables", "expected"),
    [
        (True, {"TERM": "xterm"}, True),
        (True, {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (True, {"TERM": "xterm", "NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
        (False, {"TERM": "xterm"}, False),
    ],
)
def test_colour_only_where_it_is_welcome(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, variables: dict[str, str], expected: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", Stdout(terminal=terminal))
    assert ("\x1b[32m" in output.paint_state("COMPLETED")) is expected
    assert ("\x1b" in output.table(("A", "B"), [("FAILED", 1)])) is expected


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_json_stays_json_in_every_locale(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    document = {"name": "é😀\ud800", "n": [1, None, True]}
    out = Stdout(encoding)
    monkeypatch.setattr(sys, "stdout", out)
    output.print_json(document)
    output.print_json_line(document)
    out.flush()
    text = out.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]
    first, second = text[: text.rindex("}\n", 0, -3) + 2], text.splitlines()[-1]
    assert json.loads(first) == json.loads(second) == document
