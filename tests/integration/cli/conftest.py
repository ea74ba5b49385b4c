"""What do these tests of the command line share?"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.api.conftest import upgraded, world
from tests.integration.cli.fake_api import FakeApi
from tests.unit.cli.conftest import shell
from tests.unit.cli.shell import Shell

__all__ = ["shell", "upgraded", "world"]


@pytest.fixture
def api(shell: Shell) -> Iterator[FakeApi]:
    """A scripted API that the shell's commands find by ORCHESTRIX_API_URL."""
    with FakeApi() as fake:
        shell.set(ORCHESTRIX_API_URL=fake.url)
        yield fake
