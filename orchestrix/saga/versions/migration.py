"""Migration: moves an instance with nothing in flight to a later version of its saga."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from orchestrix.saga.changes import MIGRATED
from orchestrix.saga.commands import (
    MAX_REASON,
    SagaTransition,
    TransitionInputs,
    migration_due,
    pending_command,
    progressed,
)
from orchestrix.saga.compensation import in_flight, possible_effects
from orchestrix.saga.definition import COMPLETED, Compensation, InvalidDataError, Order, Saga, Step
from orchestrix.saga.effect_keys import first_name
from orchestrix.saga.errors import DefinitionError
from orchestrix.saga.state import (
    CLONED,
    PAUSED,
    RETRY,
    UNDO_FAILED,
    UNSENDABLE,
    UNSENT,
    Instance,
    InstanceProgress,
    StateChange,
)

_UNDO: Final = ":"
"""Separates a step's name from the suffix of its compensation in the keys of attempts."""


class InvalidMappingError(DefinitionError):
    """A mapping of states or steps by which no instance can be migrated."""


@dataclass(frozen=True, slots=True)
class NameMapping:
    """The names, in the new version, of states and steps whose names have changed."""

    states: Mapping[str, str] = field(default_factory=dict)
    steps: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MigrationRoute:
    """The old and the new version. What `maps` does not name keeps its name, if the new version has that."""

    old: Saga
    new: Saga
    maps: NameMapping = NameMapping()

    def state(self, name: str) -> str | None:
        """What the new version calls this state, in which a step of it is pending."""
        found = self.maps.states.get(name, name)
        return found if self.new.step_in(found) is not None else None

    def step(self, name: str) -> str | None:
        """What the new version calls this step."""
        found = self.maps.steps.get(name, name)
        return found if self.new.step(found) is not None else None


@dataclass(frozen=True, slots=True)
class MigrationRefusal:
    """Why an instance cannot be migrated now. `in_flight`: its step is in flight, and waiting helps."""

    reason: str
    in_flight: bool = False


def check_maps(olds: Sequence[Saga], new: Saga, maps: NameMapping) -> None:
    """Raises `InvalidMappingError` for names that no version has, and where two names map to one."""
    _check_names("--map", "state", [(one.version, _states(one)) for one in olds], _states(new), maps.states, new)
    _check_names("--map-step", "step", [(one.version, _steps(one)) for one in olds], _steps(new), maps.steps, new)


def migrated(
    route: MigrationRoute, instance: Instance, inputs: TransitionInputs, *, actor: str, held_events: bool = False
) -> SagaTransition | MigrationRefusal:
    """`instance` as one of the new version, or why it stays as it is.

    Its wake-up stays. The command that waits to be sent is replaced by that of the new version.
    """
    refused = _barred(instance, held_events) or next(_unmapped(route, instance), None) or _data_problem(route, instance)
    if refused is not None:
        return MigrationRefusal(refused[:MAX_REASON])
    if _in_hand(instance):
        return MigrationRefusal(
            f"{_describe(route.old, instance)} was sent and may be running: --wait waits until it has ended",
            in_flight=True,
        )
    return _moved(route, instance, inputs, actor)


def marked(instance: Instance, until: datetime | None) -> Instance:
    """`instance`, whose next command waits until `until` for its migration; None ends that."""
    return progressed(instance, migration=None if until is None else {"until": until.isoformat()})


def _states(saga: Saga) -> list[str]:
    return [state for state in saga.path if state != COMPLETED and saga.step_in(state) is not None]


def _steps(saga: Saga) -> list[str]:
    return [step.name for step in saga.steps]


def _check_names(
    flag: str,
    what: str,
    olds: Sequence[tuple[int, Sequence[str]]],
    new: Sequence[str],
    names: Mapping[str, str],
    saga: Saga,
) -> None:
    known = {name for _, some in olds for name in some}
    for source, target in names.items():
        written = f"{flag} {source}={target}"
        if source not in known:
            has = f"they have {', '.join(sorted(known))}" if known else "there is none"
            raise InvalidMappingError(
                f"{written}: no version of {saga.name} before {saga.version} has the {what} {source}: {has}"
            )
        if target not in new:
            raise InvalidMappingError(
                f"{written}: version {saga.version} of {saga.name} has no {what} {target}: it has {', '.join(new)}"
            )
    for version, some in olds:
        _check_apart(flag, what, version, [(name, names.get(name, name)) for name in some], new)


def _check_apart(flag: str, what: str, version: int, pairs: Iterable[tuple[str, str]], new: Collection[str]) -> None:
    taken: dict[str, str] = {}
    for name, target in pairs:
        if target in new and target in taken:
            raise InvalidMappingError(
                f"{flag}: the {what}s {taken[target]} and {name} of version {version} would both be {target}: "
                f"give each its own {what}"
            )
        taken[target] = name


def _barred(instance: Instance, held_events: bool) -> str | None:
    if instance.blocker == CLONED:
        return "it is a copy not yet released (blocker cloned): resume or cancel it first"
    if instance.blocker == UNSENDABLE:
        return "its command cannot be sent (blocker unsendable): retry or cancel it first"
    if held_events:
        return "it has held events that must be applied first: start a node that knows its version"
    return None


def _unmapped(route: MigrationRoute, instance: Instance) -> Iterator[str]:
    """What of it the new version lacks, or gives another meaning."""
    if instance.state in route.old.path:
        yield from _no_state(route, instance)
        yield from _done_again(route, instance)
    else:
        yield from _lost_compensations(route, instance)
    for step in _possible_undos(route.old, instance):
        yield from _other_undo(route, step)
    yield from _one_key(route, instance)


def _no_state(route: MigrationRoute, instance: Instance) -> Iterator[str]:
    state, version = instance.state, route.new.version
    target, here = route.state(state), route.old.step_in(state)
    if target is None or here is None:
        yield f"state {state} does not exist in version {version}: use --map {state}=STATE"
        return
    there, step = route.new.step_in(target), route.step(here.name)
    assert there is not None, "a state of the new version has its step"
    if step is None:
        yield f"step {here.name} does not exist in version {version}: use --map-step {here.name}={there.name}"
    elif step != there.name:
        yield (
            f"step {here.name} would be {step}, but version {version} does {there.name} in {target}: "
            f"use --map-step {here.name}={there.name}, or --map {state}=STATE"
        )


def _done_again(route: MigrationRoute, instance: Instance) -> Iterator[str]:
    here = route.new.position(route.state(instance.state) or "")
    for step in _passed(route.old, instance):
        there = route.new.step(route.step(step.name) or "")
        if there is not None and route.new.position(there.state) >= here:
            yield f"step {step.name} has run, but version {route.new.version} would run {there.name} after this state"


def _lost_compensations(route: MigrationRoute, instance: Instance) -> Iterator[str]:
    for name in sorted(_undoing(instance.progress)):
        if route.step(name) is None:
            place = f"step {name} does not exist in version {route.new.version}"
            yield f"it is being undone, but {place}: use --map-step {name}=STEP"


def _other_undo(route: MigrationRoute, step: Step) -> Iterator[str]:
    """Refusals where a step that has run, or may have, would be undone in another way."""
    version, name = route.new.version, route.step(step.name)
    there = route.new.step(name or "")
    assert isinstance(step.undo, Compensation)
    before = _work(step.undo)
    if there is None:
        yield f"step {step.name} has run, but does not exist in version {version}: use --map-step {step.name}=STEP"
    elif not isinstance(there.undo, Compensation):
        yield f"step {step.name} has run, but version {version} does not undo {there.name}"
    elif (now := _work(there.undo)) != before:
        others = [
            one.name for one in route.new.steps if isinstance(one.undo, Compensation) and _work(one.undo) == before
        ]
        if others:
            yield f"step {step.name} has run, but its undo {before} is that of {others[0]} in version {version}"
        elif step.name not in route.maps.steps:
            yield (
                f"step {step.name} has run, but is undone by {now} instead of {before} in version {version}: "
                f"use --map-step {step.name}={there.name} if {now} undoes it too"
            )


def _one_key(route: MigrationRoute, instance: Instance) -> Iterator[str]:
    """Refusals where two steps would share one effect key: the second would take the first one's effects for its
    own."""
    named = _named(route, instance)
    taken: dict[str, str] = {}
    for name in _steps(route.new):
        first = named.get(name, name)
        if first in taken:
            yield (
                f"steps {taken[first]} and {name} of version {route.new.version} would share an effect key, because one"
                f" of them was first sent as {first}: no later version can reuse that step name"
            )
        taken[first] = name


def _data_problem(route: MigrationRoute, instance: Instance) -> str | None:
    """Why the new version rejects its data, where the old one accepts them."""
    try:
        route.new.read(instance.data)
    except InvalidDataError as wrong:
        try:
            route.old.read(instance.data)
        except InvalidDataError:
            return None
        return f"version {route.new.version} does not accept its data ({wrong}): pause and edit it first"
    return None


def _in_hand(instance: Instance) -> bool:
    """Whether its command may be in flight, or its job running."""
    return instance.blocker != UNDO_FAILED and in_flight(instance)


def _fresh(instance: Instance) -> bool:
    """Whether the pending command has never been sent: it waits for its time, or for the end of a pause."""
    if instance.blocker not in (None, PAUSED) or instance.progress.held is not None:
        return False
    reason = instance.progress.resume if instance.blocker == PAUSED else instance.wake_reason
    return reason in (RETRY, UNSENT) and not _in_hand(instance)


def _never_sent(instance: Instance) -> bool:
    """Whether no try of the pending command was ever sent."""
    return _fresh(instance) and instance.attempt == 1


def _describe(saga: Saga, instance: Instance) -> str:
    here = pending_command(saga, instance)
    if here is None:
        return f"step {instance.progress.awaited}"
    return f"the undo of step {here.step.name}" if here.undoes else f"step {here.step.name}"


def _work(order: Order) -> str:
    return order.command if order.job is None else f"job {order.job.name}"


def _passed(saga: Saga, instance: Instance) -> list[Step]:
    """The steps that this run has behind it."""
    here = saga.position(instance.state)
    over = instance.progress.passed_over
    return [step for step in saga.steps if saga.position(step.state) < here < len(saga.path) and step.name not in over]


def _possible_undos(saga: Saga, instance: Instance) -> list[Step]:
    """The steps whose effects may have to be undone."""
    awaited = saga.step(instance.progress.awaited or "")
    found = possible_effects(saga, instance, current=not _never_sent(instance))
    more = [awaited] if awaited is not None and isinstance(awaited.undo, Compensation) else []
    return [*found, *(step for step in more if step not in found)]


def _undoing(progress: InstanceProgress) -> set[str]:
    """Every step whose name is stored for a compensation."""
    awaited = {progress.awaited} if progress.awaited is not None else set()
    return {*progress.todo, *progress.undone, *progress.left, *progress.refused, *progress.runs} | awaited


def _sent(saga: Saga, instance: Instance) -> set[str]:
    """The steps of which a command may have been sent, in any run."""
    here = pending_command(saga, instance)
    present = {here.step.name} if here is not None and not _never_sent(instance) else set()
    attempts = {key.partition(_UNDO)[0] for key in instance.progress.attempts}
    passed = {step.name for step in _passed(saga, instance)}
    return present | attempts | passed | _undoing(instance.progress) | set(instance.progress.named)


def _named(route: MigrationRoute, instance: Instance) -> dict[str, str]:
    """The first names that differ from those of the new version."""
    pairs = ((route.step(name), first_name(instance, name)) for name in sorted(_sent(route.old, instance)))
    return {name: first for name, first in pairs if name is not None and name != first}


def _moved(route: MigrationRoute, instance: Instance, inputs: TransitionInputs, actor: str) -> SagaTransition:
    target = route.state(instance.state) if instance.state in route.old.path else instance.state
    assert target is not None, "what has no place was refused"
    fresh = _fresh(instance)
    after = replace(
        instance,
        state=target,
        version=instance.version + 1,
        updated_at=inputs.now,
        definition_version=route.new.version,
        command_id=inputs.command_id if fresh else instance.command_id,
        progress=_mapped(route, instance),
    )
    if (due := migration_due(instance, inputs.now)) is not None:
        after = replace(after, wake_at=max(due, inputs.now))
    here = pending_command(route.new, after)
    if fresh and here is not None:
        after = replace(after, attempt=max(after.attempt, after.progress.attempts.get(here.key, 0) + 1))
    row = StateChange(
        version=after.version,
        from_state=instance.state,
        to_state=target,
        reason=f"migrated {instance.definition_version} -> {route.new.version}",
        actor=actor,
        correlation_id=instance.correlation_id,
        caused_by=None,
        command_id=after.command_id,
        at=inputs.now,
        kind=MIGRATED,
    )
    return SagaTransition(after, (row,), None)


def _mapped(route: MigrationRoute, instance: Instance) -> InstanceProgress:
    """The progress, with every step's name replaced by its new one."""
    before = instance.progress

    def steps(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(found for name in names if (found := route.step(name)) is not None)

    attempts: dict[str, int] = {}
    for key, number in before.attempts.items():
        name, undo, rest = key.partition(_UNDO)
        key = f"{route.step(name) or name}{undo}{rest}"
        attempts[key] = max(number, attempts.get(key, 0))
    return replace(
        before,
        attempts=attempts,
        todo=steps(before.todo),
        undone=steps(before.undone),
        left=steps(before.left),
        refused=steps(before.refused),
        awaited=route.step(before.awaited) if before.awaited is not None else None,
        runs={found: runs for name, runs in before.runs.items() if (found := route.step(name)) is not None},
        named=_named(route, instance),
        passed_over=_skipped_steps(route, instance),
        migration=None,
    )


def _skipped_steps(route: MigrationRoute, instance: Instance) -> tuple[str, ...]:
    """The steps of the new version that the instance skips: what has not run is not undone."""
    if instance.state not in route.old.path:
        return tuple(found for name in instance.progress.passed_over if (found := route.step(name)) is not None)
    run = {route.step(step.name) for step in _passed(route.old, instance)}
    here = route.new.position(route.state(instance.state) or "")
    return tuple(
        step.name for step in route.new.steps if route.new.position(step.state) < here and step.name not in run
    )
