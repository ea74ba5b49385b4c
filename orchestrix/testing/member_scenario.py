"""Member scenario: tests the functions of a shard member by giving and revoking shards, without a broker.

    story = given_member(orders.work, orders.flush)
    story.assign(0, 1).revoke(1, at="10s").lose_coordinators(at="1m")
    story.run("2m")
    story.expect(shards=[], calls=["assigned 0", "assigned 1", "revoked 1", "revoked 0"])

The member's own code calls them, on virtual time: it behaves here as in production.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

from orchestrix import clock
from orchestrix.domain.shards.grants import Grant
from orchestrix.domain.shards.member_session import MemberSession
from orchestrix.domain.shards.state import Assignment, ShardRules
from orchestrix.errors import ConfigError
from orchestrix.saga.validation.signatures import called_as
from orchestrix.testing import open_scenarios
from orchestrix.testing.arguments import WHOLE, demand
from orchestrix.testing.durations import Span, seconds_of
from orchestrix.testing.environment import StoryError
from orchestrix.testing.expectations import SEVERAL, differ
from orchestrix.testing.simulation.rng import SeededRng
from orchestrix.testing.simulation.virtual_time import VirtualClock, VirtualLoop
from orchestrix.worker.shards.arguments import checked_shard_function
from orchestrix.worker.shards.runs import ShardFunction, ShardRuns

TICK_S = 0.25
"""As in `orchestrix.worker.shards.member`."""


class MemberExpected(TypedDict, total=False):
    """What can be expected at the end of the run.

    `shards`: those that it works for. `revoking`: those whose work was to end and has not. `calls`: which function was
    called for which shard, in order: `"assigned 0"`. `errors`: a part of each error that they raised, in order.
    """

    shards: Sequence[int]
    revoking: Sequence[int]
    calls: Sequence[str]
    errors: Sequence[str]


@dataclass(frozen=True, slots=True)
class MemberCall:
    """A call of one of the functions, `assigned` or `revoked`, so many seconds after the start, and how it ended:
    `returned`, `cancelled` or the error; None while it runs."""

    at: float
    function: str
    shard: int
    epoch: int
    ended_at: float | None = None
    ending: str | None = None


@called_as("given_member(orders.work, orders.flush)", ConfigError)
def given_member(
    on_assigned: ShardFunction,
    on_revoked: ShardFunction | None = None,
    *,
    heartbeat_timeout: Span = "15s",
    seed: int = 0,
) -> MemberStory:
    """A scenario of a member with these functions, as `ShardMember` takes them. `seed` is the seed of all random
    decisions. Raises `ConfigError` for what is no such function."""
    try:
        checked_shard_function("on_assigned", on_assigned)
        if on_revoked is not None:
            checked_shard_function("on_revoked", on_revoked)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    demand("given_member", seed=(seed, WHOLE))
    return MemberStory(on_assigned, on_revoked, seconds_of(heartbeat_timeout), seed)


class MemberStory:
    """A member: say what it is given and when, `run` it, `expect` how it stands. Virtual minutes take no time."""

    def __init__(
        self, on_assigned: ShardFunction, on_revoked: ShardFunction | None, timeout_s: float, seed: int
    ) -> None:
        self._functions, self._timeout_s, self._seed = (on_assigned, on_revoked), timeout_s, seed
        self._events: list[tuple[float, Callable[[_Coordinator], None]]] = []
        self._coordinator: _Coordinator | None = None
        open_scenarios.add(self)

    def assign(self, *shards: int, at: Span = 0) -> MemberStory:
        """It is given these shards; those that it has already, under a higher epoch."""
        return self._add(at, lambda coordinator: coordinator.assign(shards))

    def revoke(self, *shards: int, at: Span = 0) -> MemberStory:
        """They are not its own any more."""
        return self._add(at, lambda coordinator: coordinator.revoke(shards))

    def lose_coordinators(self, *, at: Span = 0, back_after: Span | None = None) -> MemberStory:
        """No coordinator answers any more, so that its lease ends; until so long after."""
        self._add(at, lambda coordinator: coordinator.answer(False))
        if back_after is not None:
            self._add(seconds_of(at) + seconds_of(back_after), lambda coordinator: coordinator.answer(True))
        return self

    def leave(self, *, at: Span = 0) -> MemberStory:
        """It leaves: all is stopped."""
        return self._add(at, lambda coordinator: coordinator.leave())

    def run(self, until: Span = "1m") -> MemberStory:
        """Runs it so long, then ends what still runs. Raises `StoryError` in an event loop."""
        if asyncio._get_running_loop() is not None:
            raise StoryError("a story has its own event loop: run it in a plain function, not in an `async def`")
        loop = VirtualLoop()
        with clock.use(VirtualClock(loop, SeededRng(f"{self._seed}:member"))):
            try:
                loop.run_until_complete(self._run(loop, seconds_of(until)))
            finally:
                loop.discard()
                loop.close()
        return self

    def expect(self, **expected: Unpack[MemberExpected]) -> None:
        """Raises `AssertionError`, with all that happened, if it stands otherwise."""
        __tracebackhide__ = True
        wrong = list(self._differences(expected))
        if wrong:
            raise AssertionError("\n".join([*wrong, "", self.table()]))

    @property
    def calls(self) -> list[MemberCall]:
        """Each call of the functions, in order. Raises `StoryError` before `run`."""
        return list(self._ran().calls)

    def table(self) -> str:
        """All that happened, by time."""
        calls = self._coordinator.calls if self._coordinator is not None else []
        rows = [(one.at, f"{one.function} {one.shard} (epoch {one.epoch})") for one in calls]
        rows += [
            (one.ended_at, f"{one.function} {one.shard}: {one.ending}") for one in calls if one.ended_at is not None
        ]
        lines = [f"{at:10.3f}  {what}" for at, what in sorted(rows, key=lambda row: row[0])]
        return "\n".join([f"{'seconds':>10}  what", *lines])

    # Execution.

    def _add(self, at: Span, event: Callable[[_Coordinator], None]) -> MemberStory:
        self._events.append((seconds_of(at), event))
        return self

    async def _run(self, loop: VirtualLoop, until: float) -> None:
        self._coordinator = made = _Coordinator(loop, *self._functions, self._timeout_s)
        for at, event in self._events:
            loop.call_later(at, event, made)
        end = loop.time() + until
        while loop.time() < end:
            made.check()
            await asyncio.sleep(min(TICK_S, end - loop.time()))
        made.finish()

    def _ran(self) -> _Coordinator:
        if self._coordinator is None:
            raise StoryError("the story has not run yet: call run() first")
        return self._coordinator

    def _differences(self, expected: MemberExpected) -> Iterator[str]:
        ran = self._ran()
        raised = [one.ending or "" for one in ran.calls if one.ending not in (None, "returned", "cancelled")]
        found: dict[str, Any] = {
            "shards": ran.shards,
            "revoking": ran.revoking,
            "calls": [f"{one.function} {one.shard}" for one in ran.calls],
        }
        for name, wanted in expected.items():
            if name == "errors":
                demand("expect", errors=(wanted, SEVERAL))
                texts: list[str] = list(wanted)  # type: ignore[call-overload]
                fits = len(raised) == len(texts) and all(text in one for text, one in zip(texts, raised, strict=True))
                yield from [] if fits else differ(name, raised, texts)
            elif name in found:
                yield from differ(name, found[name], list(wanted))  # type: ignore[call-overload]
            else:
                raise TypeError(f"{name!r} cannot be expected: known are {', '.join(MemberExpected.__annotations__)}")


class _Coordinator:
    """Gives a member its shards, answers its heartbeats, and notes the calls of its functions."""

    def __init__(
        self, loop: VirtualLoop, on_assigned: ShardFunction, on_revoked: ShardFunction | None, timeout_s: float
    ) -> None:
        self._loop, self._began = loop, loop.time()
        self._session = MemberSession("story", "story", 1, ShardRules(heartbeat_timeout_s=timeout_s))
        self._grants: dict[int, int] = {}
        self._generation = self._epoch = 0
        self._answers, self._next_heartbeat = True, loop.time()
        self._runs = ShardRuns(
            "the member of the story",
            self._session,
            self._noting("assigned", on_assigned),
            self._noting("revoked", on_revoked) if on_revoked is not None else None,
            self._apply_soon,
            self._check_lease,
        )
        self.calls: list[MemberCall] = []
        self.shards: list[int] = []
        self.revoking: list[int] = []

    def assign(self, shards: Sequence[int]) -> None:
        self._epoch += 1
        self._grants.update(dict.fromkeys(shards, self._epoch))
        self._begin_generation()

    def revoke(self, shards: Sequence[int]) -> None:
        for shard in shards:
            self._grants.pop(shard, None)
        self._begin_generation()

    def answer(self, answers: bool) -> None:
        self._answers = answers
        self._heartbeat()

    def leave(self) -> None:
        self._session.begin_leave()
        self._apply()

    def check(self) -> None:
        """What the member does all the time."""
        if self._loop.time() >= self._next_heartbeat:
            self._heartbeat()
        self._check_lease()
        self._runs.check()

    def finish(self) -> None:
        """How it stands; then what runs is ended."""
        self._check_lease()
        self.shards = sorted(self._session.running)
        self.revoking = sorted(run.shard for run in self._session.stopping)
        self._runs.abandon()

    def _begin_generation(self) -> None:
        self._generation += 1
        self._heartbeat()

    def _heartbeat(self) -> None:
        now = self._loop.time()
        sent = self._session.heartbeat(now)
        self._next_heartbeat = now + self._session.rules.heartbeat_timeout_s / 3
        if self._answers:
            grants = tuple(Grant(shard, shard, epoch) for shard, epoch in sorted(self._grants.items()))
            self._session.receive(Assignment("story", "story", None, self._generation, sent.seq, grants), now)
            self._apply()

    def _check_lease(self) -> None:
        self._session.check_lease(self._loop.time())
        self._apply()

    def _apply_soon(self) -> None:
        self._loop.call_soon(self._apply)

    def _apply(self) -> None:
        changes = self._session.changes(self._loop.time())
        for run in changes.stop:
            self._runs.stop(run)
        for run in changes.start:
            self._runs.start(run)
        if self._session.has_changes:
            self._apply_soon()

    def _noting(self, name: str, function: ShardFunction) -> ShardFunction:
        async def noted(shard: int, epoch: int) -> None:
            place = len(self.calls)
            self.calls.append(MemberCall(self._now(), name, shard, epoch))
            ending = "returned"
            try:
                await function(shard, epoch)
            except asyncio.CancelledError:
                ending = "cancelled"
                raise
            except Exception as error:
                ending = f"{type(error).__name__}: {error}"
                raise
            finally:
                self.calls[place] = MemberCall(self.calls[place].at, name, shard, epoch, self._now(), ending)

        return noted

    def _now(self) -> float:
        return self._loop.time() - self._began
