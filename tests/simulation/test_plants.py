"""Would the simulation find a mistake?  Each planted one must be seen, within a few seeds, and named."""

from __future__ import annotations

import pytest

from tests.simulation.plants import PLANTS, Plant
from tests.simulation.saga import Simulation

WITHIN = 60


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_mistake_is_found(plant: Plant, simulation: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    found = next((wrong for seed in range(WITHIN) if (wrong := simulation.run(seed).wrong)), [])
    assert any(PLANTS[plant] in one for one in found), f"within {WITHIN} seeds only {found}"
