"""Context: what a handler knows about the command that it executes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from orchestrix import clock
from orchestrix.saga.effect_keys import former_key, step_key
from orchestrix.saga.messages import Command
from orchestrix.telemetry import tracing

from .errors import BadCall, no_such

LOGGER: Final = logging.getLogger("orchestrix.worker")


class StepLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger whose lines name their step, in addition to each line's own `extra`."""

    def process(self, msg: object, kwargs: MutableMapping[str, Any]) -> tuple[object, MutableMapping[str, Any]]:
        given = kwargs.get("extra")
        kwargs["extra"] = {**(given if isinstance(given, Mapping) else {}), **(self.extra or {})}
        return msg, kwargs

    if not TYPE_CHECKING:  # it would hide from type checkers that it cannot be called

        def __call__(self, *_args: object, **_named: object) -> NoReturn:
            raise BadCall('context.log(…) is for jobs: a step uses a logger, context.log.info("…")')


class GroupStore(Protocol):
    """Makes and removes executor groups; see `Context.ensure_group`."""

    async def ensure(self, command: Command, marker: str, name: str) -> None: ...
    async def remove(self, command: Command, marker: str, name: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Context:
    """The saga, the step and the attempt that a handler executes.

    `effect_key` is what the step's effects are keyed by: the same over every attempt of a run, and for its
    compensation; unique across sagas and databases. `idempotency_key` is the same over every attempt, and is another
    one for the compensation. `attempt` rises for ever, over all runs of the saga. `ends` is the moment on
    `clock.monotonic()` at which the step's time is over. `undoes_attempt` is set for a compensation alone: the highest
    attempt of the step that may have been sent before it. Such an attempt can still be in flight; the compensation must
    ensure that it does nothing when it arrives. `settings` is what the handler's module has declared as its `SETTINGS`.
    """

    app_id: int
    app_name: str
    saga: str
    step: str
    correlation_id: str
    attempt: int
    idempotency_key: str
    data: Mapping[str, Any] = field(default_factory=dict)
    ends: float = float("inf")
    undoes_attempt: int | None = None
    effect_key: str = ""
    settings: Any = None
    _command: Command | None = None
    _groups: GroupStore | None = None

    @classmethod
    def of(cls, command: Command, ends: float, settings: object = None, groups: GroupStore | None = None) -> Context:
        """The context of `command`, whose time is over at `ends`."""
        return cls(
            app_id=command.app_id,
            app_name=command.app_name,
            saga=command.saga,
            step=command.step,
            correlation_id=command.correlation_id,
            attempt=command.attempt,
            idempotency_key=command.idempotency_key,
            data=command.data,
            ends=ends,
            undoes_attempt=command.undoes_attempt,
            effect_key=command.effect_key or former_key(command.saga, command.app_id, command.step),
            settings=settings,
            _command=command,
            _groups=groups,
        )

    @property
    def undoes(self) -> bool:
        """Whether the step is to be undone."""
        return self.undoes_attempt is not None

    @property
    def remaining(self) -> float:
        """The seconds that the step has left, never below 0.

        They count from the receipt of the command or, where it had to wait here, from the later read of the saga's row
        that showed that the orchestrator still waits for it.
        """
        return max(0.0, self.ends - clock.monotonic())

    @property
    def log(self) -> StepLogger:
        """A logger whose lines carry the correlation id."""
        extra = {"correlation_id": self.correlation_id, "saga": self.saga, "app_id": self.app_id, "step": self.step}
        return StepLogger(LOGGER, extra)

    @property
    def span(self) -> Any:
        """The current span object of OpenTelemetry, that of the command unless the handler has begun one of its own:
        for attributes and events of one's own. One that keeps nothing where no span is made."""
        return tracing.otel_span()

    def owns(self, effect_key: str) -> bool:
        """Whether an effect that carries this key was made by this step of this saga, in whichever of its runs."""
        return step_key(effect_key) == step_key(self.effect_key)

    async def ensure_group(self, name: str) -> None:
        """Makes the executor group `name`, marked as this step's, unless it exists with that mark.

        Raises `Permanent` if another step or a person has made a group of that name or the saga has moved on, and
        `Unavailable` if the database is unavailable.
        """
        groups, command = self._own_groups("ensure_group")
        await groups.ensure(command, self.effect_key, name)

    async def remove_group(self, name: str) -> None:
        """Deletes the executor group `name` if this saga's step has made it; any other stays. Raises the same."""
        groups, command = self._own_groups("remove_group")
        await groups.remove(command, self.effect_key, name)

    def _own_groups(self, what: str) -> tuple[GroupStore, Command]:
        if self._groups is None or self._command is None:
            raise BadCall(f"context.{what}(…) works only in the handler of a command that a worker runs")
        return self._groups, self._command

    if not TYPE_CHECKING:  # it would hide from type checkers what is misspelt

        def __getattr__(self, name: str) -> NoReturn:
            raise no_such("a step", self, name)
