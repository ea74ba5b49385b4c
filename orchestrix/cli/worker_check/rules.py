"""Rules: what a worker in any language must do, each shown by commands that are sent to it.

A rule returns its verdict. None relies on another one, but for the first: a worker that answers nothing is not asked
more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from orchestrix import clock
from orchestrix.cli.worker_check.orchestrator import CommandUnderCheck, PlayedOrchestrator, ReceivedEvent
from orchestrix.cli.worker_check.process import CheckedProcess, EffectProbe
from orchestrix.cli.worker_check.verdict import FAILED, PASSED, SKIPPED, Verdict
from orchestrix.domain.contracts import sagas
from orchestrix.quantities import counted
from orchestrix.saga.actions.merge_patch import merged
from orchestrix.saga.definition import STEP_FAILED, STEP_STARTED

SLOW_TIMEOUT_MS: Final = 2000
SHORTEST_S: Final = 0.2
"""Work that is shorter than this many seconds needs no `evt.stepStarted`."""
ALLOWANCE_S: Final = 0.5
"""Seconds that an `evt.stepStarted` may be late."""
BURST: Final = 20
POISON: Final = (b"\xff\xfe\x00", b"[]", b"{}", b"not json")
FUTURE: Final = {"futureField": {"nested": [1, 2.5, None]}, "anotherOne": "ä", "data": {"futureData": True}}


@dataclass(frozen=True, slots=True)
class WorkerUnderCheck:
    """The worker, and what its owner says of it.

    `failing` and `slow` are merged into a command that is to fail, or to take more than a second; `effect` shows
    whether there is an effect. `redelivered` were left for it before it came.
    """

    played: PlayedOrchestrator
    process: CheckedProcess | None
    effect: EffectProbe | None
    failing: Mapping[str, Any] | None
    slow: Mapping[str, Any] | None
    redelivered: Sequence[Mapping[str, Any]]
    stop_timeout_s: float
    ask_to_stop: Callable[[], None]


Rule = Callable[[WorkerUnderCheck], Awaitable[Verdict]]


async def answers(worker: WorkerUnderCheck) -> Verdict:
    """It answers a command by the success event of the step, and acknowledges it afterwards."""
    rule, played = "answer", worker.played
    sent = await played.send(played.command())
    await played.until(lambda: played.of_instance(sent) and not played.waiting(sent.queue))
    found = [one for one in played.of_instance(sent) if one.queue != STEP_STARTED]
    wanted = played.owner.order.event
    if not found:
        if unread := [one for one in played.events if one.unreadable]:
            return Verdict(rule, FAILED, f"an event on {unread[0].queue} cannot be read: {unread[0].unreadable}")
        where = "it was acknowledged all the same" if not played.waiting(sent.queue) else "the command is still unacked"
        return Verdict(rule, FAILED, f"no event with appId {sent.fields['appId']} came; {where}")
    if wrong := _wrong(found[0], sent, wanted):
        return Verdict(rule, FAILED, wrong)
    if not await played.settled(sent.queue):
        return Verdict(rule, FAILED, "the command was answered, but never acknowledged: it comes again and again")
    return Verdict(rule, PASSED, f"{wanted} after {_ms(found[0].at - sent.at)}")


async def echoes(worker: WorkerUnderCheck) -> Verdict:
    """Each event names the command that it answers, as causationId."""
    rule, played = "causationId", worker.played
    instances = [played.command() for _ in range(5)]
    for one in instances:
        await played.send(one)
    ids = {one["id"]: str(one["appId"]) for one in instances}

    def events() -> list[ReceivedEvent]:
        return [one for one in played.events if one.instance in ids.values() and one.queue != STEP_STARTED]

    await played.until(lambda: len(events()) >= len(instances))
    for event in events():
        if event.cause is None:
            return Verdict(rule, FAILED, f"{event.queue} has no causationId: put the id of the command there")
        if ids.get(str(event.cause)) != event.instance:
            return Verdict(rule, FAILED, f"{event.queue} names {event.cause!r}, which is not the command it answers")
    if len(events()) < len(instances):
        return Verdict(rule, FAILED, f"{len(events())} of {len(instances)} commands were answered")
    return Verdict(rule, PASSED, f"{counted(len(instances), 'command')}, each named by its event")


async def duplicates(worker: WorkerUnderCheck) -> Verdict:
    """A command that comes again is answered by the same success, or not at all; it is acknowledged each time."""
    rule, played = "duplicate", worker.played
    command = played.command()
    await played.answered(await played.send(command))
    sent = await played.send(command, command)
    if not await played.settled(sent.queue):
        return Verdict(rule, FAILED, "the second copy is never acknowledged")
    await played.until(lambda: len(played.answers(sent)) >= 3, 0.3)
    if failed := [one for one in played.of_instance(sent) if one.queue == STEP_FAILED]:
        return Verdict(rule, FAILED, f"a copy fails: {_error(failed[0])}. What is done already is a success")
    if worker.effect is not None and not await worker.effect.sees(command["effectKey"]):
        return Verdict(rule, FAILED, "the effect is gone after the copies")
    return Verdict(rule, PASSED, f"3 copies, {counted(len(played.answers(sent)), 'answer')}, none a failure")


async def stale(worker: WorkerUnderCheck) -> Verdict:
    """An earlier attempt that comes late is answered under its own id, or not at all."""
    rule, played = "stale command", worker.played
    instance = played.new_instance()
    newer = await played.send(played.command(instance, attempt=2))
    await played.answered(newer)
    since = clock.monotonic()
    older = await played.send(played.command(instance, attempt=1))
    if not await played.settled(older.queue):
        return Verdict(rule, FAILED, "the earlier attempt is never acknowledged")
    await played.until(lambda: played.answers(older), 0.3)
    if [one for one in played.of_instance(older, since) if one.cause == newer.id and one.queue != STEP_STARTED]:
        return Verdict(rule, FAILED, "the earlier attempt is answered under the id of the later one")
    if (not_passed := await _late_after_undo(worker, rule)) is not None:
        return not_passed
    return Verdict(rule, PASSED, f"it gave {counted(len(played.answers(older)), 'answer')} under its own id")


async def _late_after_undo(worker: WorkerUnderCheck, rule: str) -> Verdict | None:
    """What keeps it from passing where the command comes again after its undo: an effect that no event reports stays
    for ever.
    """
    played = worker.played
    if played.undo is None:
        return None
    command = played.command()
    await played.answered(await played.send(command))
    undo = await played.send(played.undoing(command))
    await played.answered(undo)
    since = clock.monotonic()
    late = await played.send(command)
    if not await played.settled(late.queue):
        return Verdict(rule, FAILED, "a command that comes after its undo is never acknowledged")
    if await played.until(lambda: played.of_instance(late, since), 0.3):
        return None
    if worker.effect is None:
        what = "a command that comes after its undo is dropped; whether it has an effect was not checked: give --effect"
        return Verdict(rule, SKIPPED, what)
    if await worker.effect.sees(command["effectKey"]):
        return Verdict(rule, FAILED, "a command that comes after its undo has an effect, and no event says so")
    return None


async def undoes(worker: WorkerUnderCheck) -> Verdict:
    """An undo finds its effect by effectKey alone, and is content to find nothing."""
    rule, played = "undo by effectKey", worker.played
    if played.undo is None:
        return Verdict(rule, SKIPPED, f"{played.owner.step.name} has no undo by a command")
    instance = played.new_instance()
    first, second = played.command(instance, made=1), played.command(instance, made=2)  # as after a restore
    never = played.command(instance, made=3)
    for one in (first, second):
        await played.answered(await played.send(one))
    for command, what in ((second, "an undo"), (second, "a second undo"), (never, "an undo of what was never done")):
        sent = await played.send(played.undoing(command))
        found = await played.answered(sent)
        if not found:
            return Verdict(rule, FAILED, f"{what} ({sent.queue}) is not answered: does the worker read that queue?")
        if wrong := _wrong(found[0], sent, played.undo.event):
            return Verdict(rule, FAILED, f"{what}: {wrong}")
    if worker.effect is None:
        return Verdict(rule, SKIPPED, "3 undos answered; which effects they took back was not checked: give --effect")
    if await worker.effect.sees(second["effectKey"]):
        return Verdict(rule, FAILED, "the effect of the command is still there after its undo")
    if not await worker.effect.sees(first["effectKey"]):
        return Verdict(
            rule, FAILED, "the effect of another command, with the same appId, is gone: find it by effectKey"
        )
    return Verdict(rule, PASSED, "3 undos answered; that effect alone is gone")


async def redelivery(worker: WorkerUnderCheck) -> Verdict:
    """A redelivered command is answered, and its failure is unsure: an earlier worker may have had an effect."""
    rule, played = "redelivery", worker.played
    sent = [CommandUnderCheck(one, clock.monotonic()) for one in worker.redelivered]
    for one in sent:
        found = await played.answered(one)
        if not found:
            return Verdict(rule, FAILED, "a command that was delivered before is not answered")
    if worker.failing is None:
        return Verdict(rule, SKIPPED, "answered; whether a failure is unsure was not checked: give --failing")
    (failure, *_) = played.answers(sent[-1])
    if failure.queue != STEP_FAILED:
        return Verdict(rule, FAILED, f"--failing does not make a command fail: {failure.queue} came")
    if wrong := _form(sagas.StepFailedEvent, failure):
        return Verdict(rule, FAILED, wrong)
    if failure.fields["error"].get("unsure") is not True:
        return Verdict(rule, FAILED, "the failure of a redelivered command has no error.unsure: true")
    return Verdict(rule, PASSED, "answered; its failure is unsure")


async def unknown_fields(worker: WorkerUnderCheck) -> Verdict:
    """Fields and headers that it does not know change nothing."""
    rule, played = "unknown fields", worker.played
    sent = await played.send(merged(played.command(), FUTURE), headers={"x-future": "1", "x-number": 2})
    found = await played.answered(sent)
    if not found:
        return Verdict(rule, FAILED, "a command with more fields is not answered")
    if wrong := _wrong(found[0], sent, played.owner.order.event):
        return Verdict(rule, FAILED, f"with more fields: {wrong}")
    return Verdict(rule, PASSED, "answered as any other")


async def slow_work(worker: WorkerUnderCheck) -> Verdict:
    """Work that lasts for more than a quarter of the timeout is announced by evt.stepStarted."""
    rule, played = "slow work", worker.played
    patch = merged({"timeoutMs": SLOW_TIMEOUT_MS}, worker.slow or {})
    sent = await played.send(played.command(patch=patch))
    quarter_s = sent.fields["timeoutMs"] / 4000
    found = await played.answered(sent, played.timeout_s + sent.fields["timeoutMs"] / 1000)
    if not found:
        return Verdict(rule, FAILED, "slow work is not answered")
    took_s = found[0].at - sent.at
    if took_s < max(SHORTEST_S, quarter_s):
        how = "give --slow, by which it takes more than a second" if worker.slow is None else "--slow is not slow"
        return Verdict(rule, SKIPPED, f"it was answered after {_ms(took_s)}: {how}")
    begun = [one for one in played.of_instance(sent) if one.queue == STEP_STARTED and one.at <= found[0].at]
    if not begun:
        return Verdict(rule, FAILED, f"the work took {_ms(took_s)}, and no {STEP_STARTED} came before its event")
    if begun[0].cause != sent.id:
        return Verdict(rule, FAILED, f"{STEP_STARTED} has the causationId {begun[0].cause!r}, which is not the command")
    if wrong := _form(sagas.StepStartedEvent, begun[0]):
        return Verdict(rule, FAILED, wrong)
    if (late_s := begun[0].at - sent.at - quarter_s) > ALLOWANCE_S:
        return Verdict(rule, FAILED, f"{STEP_STARTED} came {_ms(late_s)} after a quarter of the timeout")
    return Verdict(rule, PASSED, f"{STEP_STARTED} after {_ms(begun[0].at - sent.at)} of {_ms(took_s)}")


async def poison(worker: WorkerUnderCheck) -> Verdict:
    """What cannot be read goes to the dead letters, and the work continues."""
    rule, played = "poison", worker.played
    queue, before = played.owner.order.command, len(played.dead)
    ends = worker.process.ends if worker.process is not None else 0
    await played.send_raw(queue, *POISON)
    settled = await played.settled(queue)
    sent = await played.send(played.command())
    answered = await played.answered(sent)
    if worker.process is not None and worker.process.ends > ends:
        return Verdict(rule, FAILED, "its process ended by a message that cannot be read, and would at each redelivery")
    if not settled:
        return Verdict(rule, FAILED, "a message that cannot be read is neither acknowledged nor rejected")
    await played.until(lambda: len(played.dead) >= before + len(POISON), 1.0)
    kept = len(played.dead) - before
    if kept < len(POISON):
        lost = counted(len(POISON) - kept, "message")
        return Verdict(rule, FAILED, f"{lost} that cannot be read, or lacks fields, is lost: reject it without requeue")
    if not answered:
        return Verdict(rule, FAILED, "after messages that cannot be read it answers no more")
    return Verdict(rule, PASSED, f"{counted(kept, 'message')} in {queue}.dead, and the work continues")


async def stops(worker: WorkerUnderCheck) -> Verdict:
    """At SIGTERM nothing that it has taken is lost: it is answered, or goes back to its queue."""
    rule, played = "graceful stop", worker.played
    commands = [played.command(patch=worker.slow) for _ in range(BURST)]
    sent = [CommandUnderCheck(one, clock.monotonic()) for one in commands]
    await played.send(*commands)
    await played.until(lambda: any(played.answers(one) for one in sent), 0.5 if worker.slow is None else 1.5)
    if worker.process is not None:
        if await worker.process.stop(worker.stop_timeout_s) is None:
            return Verdict(rule, FAILED, f"it still runs {worker.stop_timeout_s:g} s after SIGTERM")
    else:
        worker.ask_to_stop()
    queue, end = played.owner.order.command, clock.monotonic() + worker.stop_timeout_s
    while await played.readers() and clock.monotonic() < end:
        await played.until(lambda: False, 0.1)
    if await played.readers():
        return Verdict(rule, FAILED, f"it still reads {queue} after {worker.stop_timeout_s:g} s")
    await played.until(lambda: False, 0.3)  # what was on its way
    done = [one for one in sent if played.answers(one)]
    return stop_verdict(len(sent), len(done), played.waiting(queue))


def stop_verdict(sent: int, answered: int, back: int) -> Verdict:
    """Of so many commands that were sent, what was answered and what is back in the queue: one may be both."""
    rule = "graceful stop"
    if (lost := sent - answered - back) > 0:
        what = f"{counted(lost, 'command')} of {sent} are lost: they were acknowledged before their event"
        return Verdict(rule, FAILED, what)
    both = f" ({-lost} answered and not acknowledged)" if lost else ""
    return Verdict(rule, PASSED, f"{answered} of {sent} answered, {back} back in the queue{both}, none lost")


async def acknowledges(worker: WorkerUnderCheck) -> Verdict:
    """In all that was sent before, no acknowledgement came before its event: a worker that dies then loses the work."""
    rule, early = "acknowledgement", len(worker.played.early)
    if early:
        what = f"{counted(early, 'command')} acknowledged before any event: what the worker does is lost if it dies"
        return Verdict(rule, FAILED, what)
    return Verdict(rule, PASSED, "each came after its event")


RULES: Final[Mapping[str, Rule]] = {
    "redelivery": redelivery,
    "causationId": echoes,
    "duplicate": duplicates,
    "stale command": stale,
    "undo by effectKey": undoes,
    "unknown fields": unknown_fields,
    "slow work": slow_work,
    "acknowledgement": acknowledges,
    "poison": poison,
    "graceful stop": stops,
}
"""In their order: the first finds what was left for the worker before it came, the last ends it."""


def _wrong(event: ReceivedEvent, sent: CommandUnderCheck, wanted: str) -> str | None:
    """What is wrong with an event that should be the success of the command."""
    if event.unreadable is not None:
        return f"{event.queue} cannot be read: {event.unreadable}"
    if event.queue == STEP_FAILED:
        return f"it failed: {_error(event)}"
    if event.queue != wanted:
        return f"the routing key is {event.queue}, not {wanted}"
    if wrong := _form(sagas.SuccessEvent, event):
        return wrong
    correlation = event.fields.get("correlationId") or event.delivery.correlation_id
    if correlation != sent.fields["correlationId"]:
        return f"{wanted} has the correlationId {correlation!r}, which is not that of the command"
    return None


def _form(
    model: type[sagas.SuccessEvent | sagas.StepFailedEvent | sagas.StepStartedEvent], event: ReceivedEvent
) -> str | None:
    """Where the event does not have the form of its contract; None if it does."""
    try:
        model.model_validate(event.fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{event.queue}: {'.'.join(map(str, first['loc']))}: {first['msg']}"
    return None


def _error(event: ReceivedEvent) -> str:
    error = event.fields.get("error")
    return f"{error.get('type')}: {error.get('message')}"[:200] if isinstance(error, dict) else "without an error"


def _ms(seconds: float) -> str:
    return f"{round(seconds * 1000)} ms"
