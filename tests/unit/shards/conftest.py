"""What do the tests of this folder share?"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers import templates


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An upgraded database, to be copied."""
    path = tmp_path_factory.mktemp("shards") / "template.db"
    templates.upgraded(f"sqlite+aiosqlite:///{path}")
    return path
