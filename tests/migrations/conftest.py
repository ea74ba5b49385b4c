"""On which databases do the migrations run?"""

from __future__ import annotations

import pytest

SERVERS = {"postgresql": "postgres_url", "mariadb": "mariadb_url"}


@pytest.fixture(params=["sqlite", *(pytest.param(name, marks=pytest.mark.servers) for name in SERVERS)])
def empty_url(request: pytest.FixtureRequest) -> str:
    """A database without a table."""
    return str(request.getfixturevalue(SERVERS.get(request.param, "sqlite_url")))
