"""Catalog: the saga versions that one process knows, and the step that each message belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .definition import STEP_FAILED, STEP_STARTED, Compensation, Order, Saga, Step, order_of
from .errors import DefinitionError
from .state import Instance


class MessageOwner(NamedTuple):
    """The step, and its saga, that a command or an event belongs to; `undoes` if it belongs to the step's
    compensation."""

    saga: Saga
    step: Step
    undoes: bool = False

    @property
    def order(self) -> Order:
        """The step itself or its compensation: what has a command, an event, a timeout and a retry policy."""
        return order_of(self.step, self.undoes)


class Catalog:
    """The sagas of this process's code, and the versions that it has read from the database (see `add_stored`).

    Raises `DefinitionError` if two sagas claim the same message, or the same name and version.
    """

    def __init__(self, sagas: Iterable[Saga]) -> None:
        self._code: dict[str, Saga] = {}
        self._code_versions: set[tuple[str, int]] = set()
        self._newest: dict[str, Saga] = {}
        self._versions: dict[tuple[str, int], Saga] = {}
        self._owners: dict[str, str] = {}
        self._commands: dict[str, dict[int, MessageOwner]] = {}
        self._events: dict[str, dict[int, MessageOwner]] = {}
        for saga in sagas:
            self._add(saga)

    def add_stored(self, saga: Saga) -> bool:
        """Adds or replaces a stored version; False for a version of the code, which stays.

        Raises `DefinitionError` if a message of it belongs to another saga.
        """
        key = saga.name, saga.version
        if key in self._code_versions:
            return False
        self._claim(saga)
        known = self._versions.pop(key, None)
        self._index(saga)
        if known is not None:
            self._remove_owner(known, replacement=saga)
        return True

    def forget(self, name: str) -> None:
        """Removes a saga that this process has no code of, with its messages."""
        assert name not in self._code, "what has code stays"
        for key in [key for key in self._versions if key[0] == name]:
            self._remove_owner(self._versions.pop(key))
        self._newest.pop(name, None)

    def replaced(self, saga: Saga) -> None:
        """The code's version was replaced by `saga`, which another process has stored: its instances run by that, and
        none is started."""
        self._code_versions.discard((saga.name, saga.version))
        if self._code.get(saga.name) == self._versions.get((saga.name, saga.version)):
            del self._code[saga.name]
        self.add_stored(saga)

    def owner(self, message: str) -> str | None:
        """The saga that a command or an event belongs to."""
        return self._owners.get(message)

    def _add(self, saga: Saga) -> None:
        key = saga.name, saga.version
        if key in self._code_versions:
            raise DefinitionError(f"two sagas are named {saga.name!r}: rename one, or give them different versions")
        self._claim(saga)
        self._code_versions.add(key)
        self._code[saga.name] = _newer(self._code.get(saga.name), saga)
        self._index(saga)

    def _claim(self, saga: Saga) -> None:
        names = _all_messages(saga)
        for message in names:
            owner = self._owners.get(message, saga.name)
            if owner != saga.name:
                raise DefinitionError(f"{message} belongs to saga {owner!r} and to {saga.name!r}: rename one")
        self._owners |= dict.fromkeys(names, saga.name)

    def _index(self, saga: Saga) -> None:
        self._versions[saga.name, saga.version] = saga
        self._newest[saga.name] = self._code.get(saga.name) or _newer(self._newest.get(saga.name), saga)
        for owner in _owners(saga):
            self._events.setdefault(owner.order.event, {})[saga.version] = owner
            if owner.order.job is None:
                self._commands.setdefault(owner.order.command, {})[saga.version] = owner

    def _remove_owner(self, saga: Saga, replacement: Saga | None = None) -> None:
        """Removes the owner of its messages, unless another version has them; `replacement` is its replacement."""
        kept = {m for one in self._versions.values() if one.name == saga.name for m in _all_messages(one)}
        for message in set(_all_messages(saga)) - kept:
            self._owners.pop(message, None)
        mine = set(_all_messages(replacement)) if replacement is not None else set()
        for message in set(_all_messages(saga)) - mine:
            self._events.get(message, {}).pop(saga.version, None)
            self._commands.get(message, {}).pop(saga.version, None)

    def __iter__(self) -> Iterator[Saga]:
        """Each saga once: the newest version of the code, else the newest that was read."""
        return iter(self._newest.values())

    @property
    def code(self) -> tuple[Saga, ...]:
        """Every version that this process has the code of."""
        return tuple(self._versions[key] for key in sorted(self._code_versions))

    def has_code(self, name: str, version: int) -> bool:
        """Whether this process has the code of that version, with the model of its data."""
        return (name, version) in self._code_versions

    def saga(self, name: str) -> Saga | None:
        """The newest version of that saga: of the code, else of those that were read."""
        return self._newest.get(name)

    def startable(self, name: str) -> Saga | None:
        """The version with which an instance starts: the newest of the code."""
        return self._code.get(name)

    def version(self, name: str, version: int) -> Saga | None:
        """That version of the saga; None if this process does not know it."""
        return self._versions.get((name, version))

    def of(self, instance: Instance) -> Saga | None:
        """The version by which the instance runs; None if this process does not know it."""
        return self._versions.get((instance.saga, instance.definition_version))

    def states(self, name: str) -> frozenset[str]:
        """Every state of the good paths of all known versions of that saga."""
        return frozenset(state for saga in self._versions.values() if saga.name == name for state in saga.path)

    def command(self, name: str, version: int | None = None) -> MessageOwner | None:
        """Who owns the command `cmd.…`, in that version or in the newest that has it."""
        return self._in_version(self._commands.get(name), version)

    def event(self, name: str, version: int | None = None) -> MessageOwner | None:
        """Who owns the success event `evt.…`, in that version or in the newest that has it."""
        return self._in_version(self._events.get(name), version)

    def _in_version(self, owners: dict[int, MessageOwner] | None, version: int | None) -> MessageOwner | None:
        if not owners:
            return None
        if version is not None:
            return owners.get(version)
        some = next(iter(owners.values()))
        return owners.get(self._newest[some.saga.name].version) or owners[max(owners)]

    @property
    def commands(self) -> tuple[str, ...]:
        """Every command of every version, also of compensations; its queue has the same name."""
        return tuple(name for name, owners in self._commands.items() if owners)

    @property
    def jobs(self) -> tuple[str, ...]:
        """The name of every job that is a step, or a compensation, each of them once."""
        owned = (owner for owners in self._events.values() for owner in owners.values())
        return tuple(dict.fromkeys(owner.order.job.name for owner in owned if owner.order.job is not None))

    @property
    def events(self) -> tuple[str, ...]:
        """Every event of every version that moves sagas, that of failure last; its queue has the same name."""
        return (*(name for name, owners in self._events.items() if owners), STEP_FAILED)

    @property
    def event_queues(self) -> tuple[str, ...]:
        """The queues of all events: also of those that only report that the work on a command has started."""
        return (*self.events, STEP_STARTED)


def _owners(saga: Saga) -> Iterator[MessageOwner]:
    for step in saga.steps:
        yield MessageOwner(saga, step)
        if isinstance(step.undo, Compensation):
            yield MessageOwner(saga, step, undoes=True)


def _newer(one: Saga | None, other: Saga) -> Saga:
    return other if one is None or one.version <= other.version else one


def _all_messages(saga: Saga) -> list[str]:
    return [message for step in saga.steps for message in _messages(step)]


def _messages(step: Step) -> list[str]:
    orders: list[Order] = [step, *([step.undo] if isinstance(step.undo, Compensation) else [])]
    return [name for order in orders for name in (order.command, order.event) if name]
