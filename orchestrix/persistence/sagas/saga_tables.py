"""Saga tables: the pair of tables that holds the instances of a saga and their history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy import Table

from orchestrix.persistence.tables import app_state_history, apps, saga_history, saga_instances


@dataclass(frozen=True, slots=True)
class SagaTables:
    """The table of instances and that of their history.

    `key` names the column of the instance's own name, `owner` the history's column with the instance's id; `saga` is
    the only saga in this pair, or None where a column names it.
    """

    instances: Table
    history: Table
    key: str
    owner: str
    saga: str | None

    @property
    def unique(self) -> tuple[str, ...]:
        """The columns of the name that can be given once."""
        return (self.key,) if self.saga else ("saga", self.key)


APPS: Final = SagaTables(apps, app_state_history, "app_name", "app_id", "app")
INSTANCES: Final = SagaTables(saga_instances, saga_history, "key", "instance_id", None)


def saga_tables_of(saga_name: str) -> SagaTables:
    """The pair for the instances of a saga."""
    return APPS if saga_name == APPS.saga else INSTANCES
