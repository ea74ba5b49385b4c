"""What do the simulations share?"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulation import saga


@pytest.fixture(scope="session")
def simulation() -> Iterator[saga.Simulation]:
    """Runs seeds."""
    with saga.simulation() as runs:
        yield runs
