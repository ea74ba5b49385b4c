"""Do the pictures of docs/architecture.md show the product, in a language that Mermaid reads?"""

from __future__ import annotations

import re

import pytest

from orchestrix.persistence.tables import metadata
from orchestrix.saga.diagram import to_mermaid
from sagas.app_provisioning import APP_PROVISIONING
from tests.documents import ARCHITECTURE, README, ROOT, block, blocks, entities, filled, parts
from tests.unit.documents.mermaid import mistakes
from tests.unit.sagas.builders import ORDER

TEXT = ARCHITECTURE.read_text()
DIAGRAMS = blocks(ARCHITECTURE, "mermaid")


def test_generated_parts_are_what_the_code_says() -> None:
    assert parts(ARCHITECTURE) == ["states:app", "tables"]
    assert filled(TEXT) == TEXT, "write it anew: python -m tests.documents"


@pytest.mark.req("S3-56")
def test_all_six_kinds_of_diagram_are_there_with_how_to_view_and_export_them() -> None:
    heads = [diagram.splitlines()[0] for diagram in DIAGRAMS]
    assert heads[:6] == ["graph TB", "sequenceDiagram", "stateDiagram-v2", "graph LR", "erDiagram", "graph TB"]
    assert all(way in TEXT for way in ("GitHub", "Visual Studio Code", "JetBrains", "mermaid.live", "mmdc"))


@pytest.mark.parametrize("diagram", [*DIAGRAMS, *blocks(README, "mermaid")], ids=lambda text: text.splitlines()[0])
def test_mermaid_can_read_it(diagram: str) -> None:
    assert list(mistakes(diagram)) == []


def test_any_saga_can_be_drawn() -> None:
    assert list(mistakes(to_mermaid(ORDER))) == []


def test_state_diagram_is_that_of_the_table() -> None:
    assert block(ARCHITECTURE, "mermaid", "stateDiagram-v2") == to_mermaid(APP_PROVISIONING)


def test_the_words_on_the_states_are_those_of_the_diagram() -> None:
    words = TEXT.split("\n## States\n")[1].split("<!--")[0]
    moves = re.findall(r"^ +(\S+) --> (\S+?)(?::|$)", to_mermaid(APP_PROVISIONING), re.MULTILINE)
    states = {state for move in moves for state in move} - {"[*]"}
    assert len(states) == 7
    assert "one of seven states" in words
    assert set(re.findall(r"`([A-Z_]+)`", words)) == states
    final = {state for state in states if {there for here, there in moves if here == state} == {"[*]"}}
    assert [f"Only `{state}` is final" in words for state in final] == [True]


def test_every_table_and_column_is_drawn() -> None:
    drawn = {
        name: [line.split()[1] for line in body.splitlines()]
        for name, body in re.findall(r"^    (\w+) \{\n(.*?)^    \}$", entities(), re.DOTALL | re.MULTILINE)
    }
    assert drawn == {table.name: [column.name for column in table.columns] for table in metadata.sorted_tables}
    assert "    apps ||--o{ app_state_history : has\n" in entities()
    assert "        bigint id PK\n        varchar app_name UK\n" in entities()
    assert "        bigint app_id FK\n" in entities()


def test_files_that_are_named_exist() -> None:
    places = re.findall(r"`((?:app|sagas|workers)/[\w/.]*)`", TEXT)
    assert places
    assert [place for place in places if not (ROOT / place).exists()] == []


def missing(rows: str) -> list[str]:
    """What the rows of "Where to find it" name, and the library does not have."""
    library = ROOT / "orchestrix"
    named = re.findall(r"`([a-z_/]+(?:\.py|/))`(?: `(?:\w+\.)?(\w+)`)?", rows)
    return [
        f"{place} {name}".strip()
        for place, name in named
        if not (library / place).exists() or (name and not re.search(rf"\b{name}\b", (library / place).read_text()))
    ]


def test_what_is_to_be_found_somewhere_is_there() -> None:
    rows = TEXT.split("| question |")[1].split("\n## ")[0]
    assert rows.count("\n| ") > 30
    assert missing(rows) == []


def test_a_place_without_what_it_names_is_found() -> None:
    rows = "| a | `saga/steps.py` `RetryPolicy.wait` | `saga/gone.py`, `server.py` `_gone`, `cli/commands/` |"
    assert missing(rows) == ["saga/gone.py", "server.py _gone"]


def test_sequence_names_every_message_of_the_saga() -> None:
    sequence = DIAGRAMS[1]
    assert all(step.command in sequence and step.event in sequence for step in APP_PROVISIONING.steps)


@pytest.mark.parametrize(
    ("diagram", "says"),
    [
        ("pie\n  a", "unknown kind: pie"),
        ('graph TB\n a["A"]\n a --> b', "b is nowhere defined"),
        ('graph TB\n a["A"]\n a -> a', "cannot be read: a -> a"),
        ('graph TB\n a["A]', 'cannot be read: a["A]'),
        ('graph TB\n subgraph s["S"]\n a["A"]', "what is opened is not closed"),
        ("sequenceDiagram\n participant A\n A->>B: x", "B is not declared"),
        ("sequenceDiagram\n participant A\n A->>A", "cannot be read: A->>A"),
        ("stateDiagram-v2\n A --> b", "cannot be read: A --> b"),
        ("erDiagram\n a {\n bigint id XX\n }", "cannot be read: bigint id XX"),
        ("erDiagram\n a {\n bigint id", "what is opened is not closed"),
    ],
)
def test_mistakes_are_found(diagram: str, says: str) -> None:
    assert says in list(mistakes(diagram))
