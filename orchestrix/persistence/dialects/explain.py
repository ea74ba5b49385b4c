"""Explain: asks a server for its plan of a query instead of its rows."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Executable, Select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.elements import ClauseElement


class Explain(Executable, ClauseElement):
    """The server's plan for `query`."""

    inherit_cache = False

    def __init__(self, query: Select[Any]) -> None:
        self.query = query


@compiles(Explain)
def _explain(asked: Explain, compiler: SQLCompiler, **options: Any) -> str:
    return f"EXPLAIN {compiler.process(asked.query, **options)}"


@compiles(Explain, "postgresql")
def _explain_as_json(asked: Explain, compiler: SQLCompiler, **options: Any) -> str:
    return f"EXPLAIN (FORMAT JSON) {compiler.process(asked.query, **options)}"
