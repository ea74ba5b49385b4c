"""How is a seed seen again from the command line?"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from tests.simulation.unrest import Outcome


def replay(about: str, run: Callable[[int], Outcome]) -> int:
    """Runs the seeds that are asked for; 1 if one of them goes wrong."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--seed", type=int, required=True, help="the first seed")
    parser.add_argument("--count", type=int, default=1, help="how many seeds from there")
    parser.add_argument("--trace", action="store_true", help="show all that happens")
    asked = parser.parse_args()
    failed = 0
    for seed in range(asked.seed, asked.seed + asked.count):
        outcome = run(seed)
        failed += bool(outcome.wrong)
        if asked.trace:
            print("\n".join(outcome.trace))
        if asked.trace or outcome.wrong:
            print(outcome)
            print(outcome.digest)
    print(f"{asked.count} seeds, {failed} of them wrong")
    return 1 if failed else 0
