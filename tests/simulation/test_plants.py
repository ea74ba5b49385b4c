"""Would the simulation find a mistake?  Each planted one must be seen, within a few seeds, and named."""

from __future__ import annotations

import pytest

from tests.simulation.plants import PLANTS, VERSION_PLANTS, Plant
from tests.simulation.saga import Simulation
from tests.simulation.versions import MixedWorld

WITHIN = 60


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_mistake_is_found(plant: Plant, simulation: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    found = next((wrong for seed in range(WITHIN) if (wrong := simulation.run(seed).wrong)), [])
    assert any(PLANTS[plant] in one for one in found), f"within {WITHIN} seeds only {found}"


@pytest.mark.parametrize("plant", VERSION_PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_mistake_about_versions_is_found(
    plant: Plant, simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    found = next((wrong for seed in range(WITHIN) if (wrong := simulation.run(seed, MixedWorld).wrong)), [])
    assert any(VERSION_PLANTS[plant] in one for one in found), f"within {WITHIN} seeds only {found}"
