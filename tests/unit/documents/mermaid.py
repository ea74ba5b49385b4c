"""Could Mermaid draw this?  Not its whole grammar: the part that our documents use."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

_LABEL = r'(?:"[^"]*")'
_SHAPE = rf"(?:\[{_LABEL}\]|\[\({_LABEL}\)\]|\{{\{{{_LABEL}\}}\}})"
_NODE = rf"\w+{_SHAPE}?"
_NODES = rf"{_NODE}(?: & {_NODE})*"
_ARROW = rf"(?:-->|-\.->)(?:\|{_LABEL}\|)?"
_GRAPH = [
    re.compile(rf"subgraph \w+\[{_LABEL}\]"),
    re.compile(r"end"),
    re.compile(rf"{_NODES}(?: {_ARROW} {_NODES})*"),
]
_STATES = [re.compile(r"(?:\[\*\]|[A-Z][A-Z0-9_]*) --> (?:\[\*\]|[A-Z][A-Z0-9_]*)(?:: [\w., ]+)?")]
_SEQUENCE = [
    re.compile(r"(?:actor|participant) \w+(?: as [\w.]+)?"),
    re.compile(r"Note over \w+(?:,\w+)?: [^;#]+"),
    re.compile(r"rect rgb\(\d+, \d+, \d+\)"),
    re.compile(r"end"),
    re.compile(r"\w+--?>>\w+: [^;#]+"),
]
_ENTITIES = [
    re.compile(r"\w+ \|\|--o\{ \w+ : \w+"),
    re.compile(r"\w+ \{"),
    re.compile(r'\w+ \w+(?: (?:PK|FK|UK)(?:, (?:PK|FK|UK))*)?(?: "[^"]*")?'),
    re.compile(r"\}"),
]
GRAMMARS: Final = {
    "graph TB": _GRAPH,
    "graph LR": _GRAPH,
    "stateDiagram-v2": _STATES,
    "sequenceDiagram": _SEQUENCE,
    "erDiagram": _ENTITIES,
}


def mistakes(diagram: str) -> Iterator[str]:
    """A sentence for each line that Mermaid would stumble over."""
    head, *lines = [line.strip() for line in diagram.splitlines() if line.strip()]
    if head not in GRAMMARS:
        yield f"unknown kind: {head}"
        return
    for line in lines:
        if not any(pattern.fullmatch(line) for pattern in GRAMMARS[head]):
            yield f"cannot be read: {line}"
    opened = sum(line.startswith(("subgraph ", "rect ")) or line.endswith(" {") for line in lines)
    if opened != sum(line in ("end", "}") for line in lines):
        yield "what is opened is not closed"
    yield from _CHECKS.get(head, _nothing)(lines)


def _nothing(lines: list[str]) -> Iterator[str]:
    return iter(())


def _undefined_nodes(lines: list[str]) -> Iterator[str]:
    """A node without a label of its own is a misspelt one."""
    bare = [re.sub(_LABEL, '""', line) for line in lines]
    labelled = {name for line in bare for name in re.findall(r"(\w+)[\[{]", line)}
    for line in bare:
        if not line.startswith("subgraph ") and line != "end":
            yield from (f"{name} is nowhere defined" for name in re.findall(r"\w+", line) if name not in labelled)


def _undeclared_participants(lines: list[str]) -> Iterator[str]:
    declared = {line.split()[1] for line in lines if line.startswith(("actor ", "participant "))}
    for line in lines:
        if found := re.match(r"(?:Note over )?(\w+)(?:--?>>|,)?(\w+)?: ", line):
            yield from (f"{name} is not declared" for name in found.groups() if name and name not in declared)


_CHECKS: dict[str, Callable[[list[str]], Iterator[str]]] = {
    "graph TB": _undefined_nodes,
    "graph LR": _undefined_nodes,
    "sequenceDiagram": _undeclared_participants,
}
