"""A saga whose definition changes while it runs: every process has the code of other versions, whenever it starts.

    .venv/bin/python -m tests.simulation.versions --seed 123 --trace

runs that seed again, exactly as it was, and shows what happened.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from orchestrix import Compensation, NothingToUndo, Saga, Step
from orchestrix.node import Node
from orchestrix.persistence.sagas.definition_store import ReplacedDefinition
from orchestrix.saga.catalog import Catalog
from orchestrix.testing.simulation.virtual_time import elapse
from tests.simulation import saga
from tests.simulation.system import APP, ORDER, RETRY, STEP_TIME, Member, NodeMember, World

_RESERVE, _CHARGE, _TELL, _PACK = ORDER.steps
_UNDO: Final = replace(RETRY, attempts=3)


def _added(name: str, state: str, then: str) -> Step:
    nothing = NothingToUndo("it was only looked at")
    return Step(name, state, f"cmd.{name}", f"evt.{name}.done", then, nothing, timeout=STEP_TIME, retry=RETRY)


FIRST: Final = ORDER
SECOND: Final = Saga(
    name="order",
    version=2,
    steps=(
        replace(_RESERVE, state="OPENED", then="WEIGHING"),
        _added("weigh", "WEIGHING", "RESERVED"),
        replace(_CHARGE, event="evt.charged", undo=Compensation("cmd.payBack", "evt.paidBack", STEP_TIME, _UNDO)),
        replace(_TELL, state="CHARGED", then="PACKING"),
        replace(_PACK, state="PACKING"),
    ),
)
"""Renamed states, one more step, another event and another undo."""
THIRD: Final = Saga(
    name="order",
    version=3,
    steps=(
        replace(
            _CHARGE, state="NEW", then="RESERVED", undo=Compensation("cmd.refund", "evt.refunded", STEP_TIME, _UNDO)
        ),
        replace(_RESERVE, state="RESERVED", then="TOLD", event="evt.held"),
        replace(_PACK, state="TOLD", undo=NothingToUndo("it stays as it is packed")),
    ),
)
"""The same states as the first with other steps in them, one step less, and an undo less."""
VERSIONS: Final = (FIRST, SECOND, THIRD)


class MixedWorld(World):
    """A world in which every boot draws the code that the process has: one version, or none of the saga at all.

    In most seeds nodes do not store what they have, as where a definition has a form that the others cannot
    read: then events are held until the last code comes, which has all.
    """

    module = "tests.simulation.versions"

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self._dice = self.dice("code")
        self._silent = self._dice.random() < 0.6
        self._last: Sequence[Saga] | None = None

    def _wanted(self, seed: int) -> tuple[Saga, ...]:
        return (THIRD, APP) if seed % 4 == 0 else (THIRD,)

    def _known(self) -> tuple[Saga, ...]:
        return (APP, *VERSIONS)

    def code(self, member: Member) -> Catalog:
        """One version, or none; a worker that others rely on has all."""
        if member.name == "worker-0":
            return Catalog([APP, *VERSIONS])
        if self._last is not None and member.name == "node-0":
            return Catalog([APP, *self._last])
        one = self._dice.choice([*VERSIONS, None] if isinstance(member, NodeMember) else VERSIONS)
        self.witness.note(f"{member.name} has version {one.version if one else 'none'}")
        return Catalog([APP] if one is None else [APP, one])

    def prepare(self, node: Node) -> None:
        """Nodes of such a seed only read, until the end of the bad days."""
        if self._silent and self._last is None:

            async def read() -> list[ReplacedDefinition]:
                await node.engine.definitions.read_all()
                return []

            node.engine.definitions.record = read  # type: ignore[method-assign]

    async def change_hands(self) -> None:
        """Everybody is started again: with all code where versions are stored nowhere, else with one, old or new."""
        self._last = VERSIONS if self._silent else (self._dice.choice(VERSIONS),)
        for member in self.members:
            ends, process = self.loop.time() + saga.STOPPING, member.process
            member.stopping.set()
            while process.alive and self.loop.time() < ends:
                await elapse(0.1)
            if process.alive:
                self.witness.complain(f"{process.name} did not stop within {saga.STOPPING:g} s")
            member.boot()


if __name__ == "__main__":
    sys.exit(saga.main(MixedWorld))
