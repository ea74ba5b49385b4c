"""Balance: which nodes hand jobs off because they have far more than others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

OVERLOAD_FACTOR: Final = 2
"""A node is overloaded only with so many times the jobs of the least loaded one …"""
OVERLOAD_MARGIN: Final = 10
"""… and with so many more: a few jobs are not worth the move."""


def jobs_to_hand_off(loads: Mapping[str, int]) -> dict[str, int]:
    """How many jobs each overloaded node hands off, by node; nothing where the loads are alike.

    A node hands off at most its excess over the average, so that it is not the one with too few afterwards, and all
    together no more than the nodes with too few can take: nothing comes back the next time.
    """
    if len(loads) < 2:
        return {}
    least, total = min(loads.values()), sum(loads.values())
    even = -(-total // len(loads))
    surplus = {node: load - even for node, load in loads.items() if _is_overloaded(load, least) and load > even}
    room = sum(max(0, even - load) for load in loads.values())
    given: dict[str, int] = {}
    for node in sorted(surplus, key=lambda node: (-surplus[node], node)):
        if count := min(surplus[node], room):
            given[node], room = count, room - count
    return given


def _is_overloaded(load: int, least: int) -> bool:
    return load >= OVERLOAD_FACTOR * least and load - least >= OVERLOAD_MARGIN
