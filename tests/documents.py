"""Which parts of README and docs are made from the code?  Run as a module it writes them anew."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Column, Table, UniqueConstraint

from orchestrix import Compensation, Saga, Step
from orchestrix.persistence.tables import metadata
from orchestrix.saga.diagram import to_mermaid
from orchestrix.telemetry import log_events
from orchestrix.telemetry.metrics.catalogue import CATALOGUE
from orchestrix.telemetry.metrics.definitions import ReportedBy
from sagas.app_provisioning import APP_PROVISIONING
from tests.monitoring.alerts import ALERTS, rules
from tests.monitoring.dashboard import dashboard, datasources

ROOT: Final = Path(__file__).parents[1]
README: Final = ROOT / "README.md"
ARCHITECTURE: Final = ROOT / "docs" / "architecture.md"
CONTRACTS: Final = ROOT / "docs" / "contracts.md"
OBSERVABILITY: Final = ROOT / "docs" / "observability.md"
MONITORING: Final = ROOT / "deploy" / "monitoring"
FILES: Final[dict[Path, Callable[[], str]]] = {
    MONITORING / "rules.yml": rules,
    MONITORING / "dashboard.json": dashboard,
    MONITORING / "datasources.yml": datasources,
}
"""The files that are made from the code as a whole."""

_TYPES: Final = {
    "UtcTime": "timestamp",
    "BigInteger": "bigint",
    "Integer": "integer",
    "Double": "double",
    "LargeBinary": "blob",
    "Json": "json",
    "String": "varchar",
    "Text": "text",
}
_PART = re.compile(r"(<!-- (?P<name>[a-z:]+) -->\n).*?(<!-- /(?P=name) -->)", re.DOTALL)
_FENCED = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(document: Path, language: str) -> list[str]:
    """The code blocks in that language, in their order."""
    return [code for found, code in _FENCED.findall(document.read_text()) if found == language]


def block(document: Path, language: str, holding: str) -> str:
    """The one code block in that language that holds `holding`."""
    (code,) = (code for code in blocks(document, language) if holding in code)
    return code


def saga_table(saga: Saga) -> str:
    """The saga's steps, one a line, then its immediate moves."""
    head = "| step | state meanwhile | command | success | leads to | time | undone by |"
    rows = [head, "|---" * 7 + "|", *(_row(step) for step in saga.steps)]
    moves = [f"{source} → {target}" for source, target in saga.immediate.items()]
    return "\n".join([*rows, *(["", f"At once, by the orchestrator: {', '.join(moves)}."] if moves else [])])


def _row(step: Step) -> str:
    undo = f"`{step.undo.command}`" if isinstance(step.undo, Compensation) else "nothing"
    time = f"{step.timeout / timedelta(seconds=1):g} s"
    cells = (step.name, step.state, f"`{step.command}`", f"`{step.event}`", step.then, time, undo)
    return f"| {' | '.join(cells)} |"


def log_event_table() -> str:
    """The catalogue of log events, one a line: the name, and what it says."""
    rows = re.findall(r"^[A-Z_]+: Final = \"(.+)\"\n\"\"\"(.+)\"\"\"$", inspect.getsource(log_events), re.MULTILINE)
    return "\n".join(["| event | meaning |", "|---|---|", *(f"| `{name}` | {text} |" for name, text in rows)])


def metric_table() -> str:
    """The catalogue of metrics, one a line: their names in Prometheus, their labels, and how to aggregate them."""
    aggregated = {ReportedBy.PROCESS: "add", ReportedBy.LEADER: "add (leader)", ReportedBy.EVERY_NODE: "largest"}
    rows = ["| metric | type | labels | of several processes | meaning |", "|---|---|---|---|---|"]
    for one in CATALOGUE:
        labels = ", ".join(f"`{label.prometheus}`" for label in one.labels)
        rows.append(f"| `{one.sample}` | {one.kind.value} | {labels} | {aggregated[one.reported_by]} | {one.help} |")
    return "\n".join(rows)


def alert_table() -> str:
    """The alerts, one a line."""
    rows = ["| alert | promise | lasting |", "|---|---|---|"]
    rows += [f"| [{one.name}](runbooks.md#{one.name.lower()}) | {one.promise} | {one.lasting} |" for one in ALERTS]
    return "\n".join(rows)


def entities() -> str:
    """Every table as a Mermaid `erDiagram`, with a line for each foreign key."""
    lines = ["erDiagram"]
    for table in metadata.sorted_tables:
        keys = sorted(table.foreign_keys, key=lambda key: key.parent.name)
        lines += [f"    {key.column.table.name} ||--o{{ {table.name} : has" for key in keys]
    for table in metadata.sorted_tables:
        attributes = [f"        {_attribute(table, column)}" for column in table.columns]
        lines += [f"    {table.name} {{", *attributes, "    }"]
    return "\n".join(lines) + "\n"


def _attribute(table: Table, column: Column[Any]) -> str:
    keys = [name for name, holds in (("PK", column.primary_key), ("FK", bool(column.foreign_keys))) if holds]
    if any(list(one.columns) == [column] for one in table.constraints if isinstance(one, UniqueConstraint)):
        keys.append("UK")
    words = [_type(column), column.name, ", ".join(keys), '"may be empty"' if column.nullable else ""]
    return " ".join(word for word in words if word)


def _type(column: Column[Any]) -> str:
    return _TYPES[type(column.type).__name__]


def _fenced(mermaid: str) -> str:
    return f"```mermaid\n{mermaid}```"


PARTS: Final[dict[str, Callable[[], str]]] = {
    "saga:app": lambda: f"{saga_table(APP_PROVISIONING)}\n\n{_fenced(to_mermaid(APP_PROVISIONING))}",
    "states:app": lambda: _fenced(to_mermaid(APP_PROVISIONING)),
    "log:events": log_event_table,
    "metrics": metric_table,
    "alerts": alert_table,
    "tables": lambda: _fenced(entities()),
}
"""What stands between `<!-- name -->` and `<!-- /name -->`."""


def filled(text: str) -> str:
    """`text` with every generated part as the code has it now."""
    return _PART.sub(lambda found: f"{found[1]}{PARTS[found['name']]()}\n{found[3]}", text)


def parts(document: Path) -> list[str]:
    """The names of the generated parts in `document`."""
    return [found["name"] for found in _PART.finditer(document.read_text())]


def _stale() -> Iterator[tuple[Path, str]]:
    for document in (README, ARCHITECTURE, OBSERVABILITY):
        text = document.read_text()
        if (new := filled(text)) != text:
            yield document, new
    for file, made in FILES.items():
        if not file.exists() or file.read_text() != made():
            yield file, made()


def main() -> None:
    """Writes the documents whose generated parts are out of date."""
    for document, text in _stale():
        document.parent.mkdir(exist_ok=True)
        document.write_text(text)
        print(f"{document.relative_to(ROOT)} brought up to date")


if __name__ == "__main__":
    main()
