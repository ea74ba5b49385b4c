"""Which sagas does this process know, and to which step does a message belong?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .definition import STEP_FAILED, STEP_STARTED, Compensation, Order, Saga, Step, order_of
from .errors import DefinitionError


class Owner(NamedTuple):
    """The step, and its saga, that a command or an event belongs to; `undoes` if it belongs to the step's undo."""

    saga: Saga
    step: Step
    undoes: bool = False

    @property
    def order(self) -> Order:
        """The step itself or its undo: what has a command, an event, a timeout and a retry policy."""
        return order_of(self.step, self.undoes)


class Catalog:
    """The sagas that one process knows. Raises `DefinitionError` if two of them claim the same name or message."""

    def __init__(self, sagas: Iterable[Saga]) -> None:
        self._sagas: dict[str, Saga] = {}
        self._commands: dict[str, Owner] = {}
        self._events: dict[str, Owner] = {}
        taken: dict[str, str] = {}
        for saga in sagas:
            self._add(saga, taken)

    def _add(self, saga: Saga, taken: dict[str, str]) -> None:
        if saga.name in self._sagas:
            raise DefinitionError(f"two sagas are named {saga.name!r}: rename one")
        self._sagas[saga.name] = saga
        for step in saga.steps:
            for message in _messages(step):
                if message in taken:
                    raise DefinitionError(
                        f"{message} belongs to saga {taken[message]!r} and to {saga.name!r}: rename one"
                    )
                taken[message] = saga.name
            self._own(Owner(saga, step))
            if isinstance(step.undo, Compensation):
                self._own(Owner(saga, step, undoes=True))

    def _own(self, owner: Owner) -> None:
        self._events[owner.order.event] = owner
        if owner.order.job is None:
            self._commands[owner.order.command] = owner

    def __iter__(self) -> Iterator[Saga]:
        return iter(self._sagas.values())

    def saga(self, name: str) -> Saga | None:
        """The saga of that name."""
        return self._sagas.get(name)

    def command(self, name: str) -> Owner | None:
        """Who owns the command `cmd.…`."""
        return self._commands.get(name)

    def event(self, name: str) -> Owner | None:
        """Who owns the success event `evt.…`."""
        return self._events.get(name)

    @property
    def commands(self) -> tuple[str, ...]:
        """Every command, those of undo too; its queue has the same name."""
        return tuple(self._commands)

    @property
    def jobs(self) -> tuple[str, ...]:
        """The name of every job that is a step, or an undo, each of them once."""
        jobs = (owner.order.job for owner in self._events.values())
        return tuple(dict.fromkeys(job.name for job in jobs if job is not None))

    @property
    def events(self) -> tuple[str, ...]:
        """Every event that moves sagas, that of failure last; its queue has the same name."""
        return (*self._events, STEP_FAILED)

    @property
    def event_queues(self) -> tuple[str, ...]:
        """The queues of all events: also of those that only tell that the work on a command has begun."""
        return (*self.events, STEP_STARTED)


def _messages(step: Step) -> list[str]:
    orders: list[Order] = [step, *([step.undo] if isinstance(step.undo, Compensation) else [])]
    return [name for order in orders for name in (order.command, order.event) if name]
