"""Crash points: where a test may kill this process, and what is lost or done twice there at most."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from orchestrix.errors import ConfigError

T = TypeVar("T")

SWITCH: Final = "ORCHESTRIX_TESTING"
SETTING: Final = "ORCHESTRIX_CRASH_AT"
STDERR: Final = 2
EXIT_CODE: Final = 137
"""The exit code of a process that was killed (128 + SIGKILL)."""

POINTS: Final[Mapping[str, str]] = {
    "start.before_commit": "Nothing is written and the client has no answer: it repeats the request.",
    "start.after_commit": "The saga is stored, the client has no answer; its command waits for the end of its claim.",
    "start.keyed_after_commit": "The same for a start with a key, whose repetition gets the stored answer.",
    "outbox.after_claim": "Rows are claimed by a dead node: they are sent when the claim has expired.",
    "outbox.before_publish": "The same for rows that were claimed as they were written.",
    "outbox.after_publish": "The broker and the outbox have the commands: each is sent twice under one id.",
    "outbox.after_confirm": "The same, although the broker had confirmed them.",
    "events.after_receive": "Nothing is written; the broker delivers the events again.",
    "events.before_commit": "Everything is rolled back; the broker delivers the events again.",
    "events.after_commit": "The sagas have moved; the events are redelivered, another scan sends the next commands.",
    "events.before_ack": "The same, but the next commands may have been sent already.",
    "events.after_dead_letter": "The dead letter is sent, its message is redelivered: sent twice, stored once.",
    "begins.before_ack": "The start of the work is recorded; its event is redelivered and changes nothing.",
    "held.before_commit": "The event is still held: the next node that reads it applies it.",
    "held.after_commit": "It is applied and deleted; the saga's next command is sent by the next scan of the outbox.",
    "timers.before_commit": "What is due is still due, and is written by the next node that reads it.",
    "timers.after_commit": "The sagas' next commands are in the outbox, and are sent by its next scan.",
    "control.before_commit": "Nothing is written and the operator has no answer: repeating the request does it.",
    "control.after_commit": "It is done and the operator has no answer: repeating the request changes nothing.",
    "migrate.before_commit": "Nothing of this batch is written, committed batches stay: the next run continues.",
    "migrate.after_commit": "The batch is migrated and not reported: the next run finds the rest.",
    "redispatch.after_claim": "The new incarnation of the broker has an id and no queue: the next node begins again.",
    "redispatch.before_declare": "The same; the commands that were sent meanwhile are sent once more.",
    "redispatch.after_chunk": "Some are sent again and the operator has no answer: repeating it sends all once more.",
    "deadletters.before_commit": "Nothing is written; the broker delivers the dead letters again.",
    "deadletters.after_commit": "They are stored and redelivered: each is identified by its content, and stored once.",
    "redrive.before_commit": "Nothing is written and the operator has no answer: repeating the request does it.",
    "redrive.after_commit": "It will be sent, the operator has no answer: repeating the request sends no second one.",
    "jobs.submit.before_commit": "Nothing is written and the client has no answer: it repeats the request.",
    "jobs.submit.after_commit": "The job is stored and the leader is not notified: it finds the job within seconds.",
    "jobs.dispatch.after_claim": "The jobs are still due: the next leader dispatches them.",
    "jobs.dispatch.before_commit": "The same; an attempt without a row was never made.",
    "jobs.dispatch.after_commit": "The dispatch is in the outbox, and is sent when its claim has expired.",
    "jobs.broadcast.before_commit": "The broadcast is still due and has no children: the next leader fires it.",
    "jobs.broadcast.after_commit": "It is fired, and its children are due: the next leader dispatches them.",
    "jobs.children.before_commit": "Children of an ended or cancelled broadcast go on: the next leader cancels them.",
    "jobs.children.after_commit": "They are cancelled, and executors are not notified: their owners tell them.",
    "jobs.take.after_receive": "Nothing is written; the broker delivers the jobs' offers to another node.",
    "jobs.take.before_commit": "The same.",
    "jobs.take.after_commit": "The jobs are owned by a dead node, which reads nothing: they get another owner.",
    "jobs.report.after_declare": "The queues are there and empty; the executor reports to another node.",
    "jobs.report.before_notice": "The report is in its queue; it comes again by another node, which notifies.",
    "jobs.report.before_answer": "The report is there and the executor has no answer: it comes twice and counts once.",
    "jobs.call.before_call": "The address is stored, and nothing was sent: the next owner calls it.",
    "jobs.call.after_answer": "The executor has the attempt: the next owner calls it again, which begins nothing.",
    "jobs.take.before_answer": "The same, and the former owner sees in the rows that they have a new owner.",
    "jobs.take.after_dead_letter": "The dead letter is sent, its message is redelivered: sent twice, stored once.",
    "jobs.take.before_ack": "The same; the broker delivers the offer again, and no node takes a job that has an owner.",
    "jobs.events.after_receive": "Nothing is written; the next owner receives all messages again.",
    "jobs.events.before_commit": "The same.",
    "jobs.events.after_commit": "They are stored, and the next owner receives them again: each is known by its number.",
    "jobs.events.after_dead_letter": "The dead letter is sent, its message is redelivered: sent twice, stored once.",
    "jobs.events.before_ack": "The same for the rest of a batch, whose first jobs are acknowledged.",
    "jobs.cancel.before_commit": "Nothing is written and the operator has no answer: repeating the request does it.",
    "jobs.cancel.after_commit": "The worker is not notified: it is when its next heartbeat comes.",
    "jobs.retry.before_commit": "Nothing is written and the operator has no answer: repeating the request does it.",
    "jobs.retry.after_commit": "It is retried and the leader is not notified: it finds the job within seconds.",
    "jobs.rescue.before_commit": "What has timed out, is silent or without owner still is: the next leader finds it.",
    "jobs.rescue.after_commit": "Worker and dispatcher are not notified: both find it a little later.",
    "jobs.handoff.before_mark": "The jobs are owned by a dead node: they get another owner.",
    "jobs.handoff.after_mark": "The same, with the reason in their rows.",
    "jobs.handoff.after_publish": "The jobs are offered: the node that takes them is their owner.",
    "jobs.handoff.after_confirm": "The same.",
    "jobs.handoff.after_answer": "Another node owns them, and reads them as soon as this one's channels are closed.",
    "jobs.handoff.after_close": "The same for the rest.",
    "jobs.end.before_delete": "The queues of ended jobs exist: the next owner deletes them a while later.",
    "jobs.end.after_delete": "The same; they are declared again for that, and are empty.",
    "jobs.end.after_commit": "Nothing is left to do.",
    "leader.after_token": "The broker gives the token to the next node in the election queue.",
    "leader.before_commit": "The same; the term has never begun.",
    "leader.after_commit": "A term in which nothing was done: the next one begins with the token.",
    "leader.after_new_token": "There are two tokens: the older one is dropped, or costs one more term.",
    "leader.before_resign": "The token goes to the next node in the election queue, though the lease has not ended.",
    "leader.after_resign": "The same, and the lease has ended.",
    "nodes.death.before_commit": "The dead node counts as alive, until the next leader has listened for a while.",
    "nodes.death.after_commit": "It is dead, and the orphan detector is not notified: its next check finds the jobs.",
    "registry.register.before_commit": "Nothing is written and the executors have no answer: they try another node.",
    "registry.register.after_commit": "They are registered and have no answer: their next heartbeat changes nothing.",
    "registry.remove.before_commit": "Nothing is written: the goodbye is repeated, or the executor is removed in time.",
    "registry.remove.after_commit": "It is removed and has no answer: the repeated goodbye changes nothing.",
    "registry.cleanup.before_commit": "The silent are still registered: the next leader listens, then removes them.",
    "registry.cleanup.after_commit": "They are removed, which no log line says: the registry shows it for minutes.",
    "schedules.fire.before_commit": "The schedule is still due, and has no job for that time.",
    "schedules.fire.after_commit": "The job is stored and the schedule has moved on: both were one commit.",
    "schedules.release.before_commit": "The run may begin, and still waits: the next check releases it.",
    "schedules.release.after_commit": "The run is released, and the leader finds it within seconds.",
    "shards.change.before_commit": "Nothing is written; the broker gives what the members sent to another node.",
    "shards.change.after_commit": "It is stored and not answered: what members sent comes again, and is answered then.",
    "shards.lead.after_commit": "The pending generation has a dead leader: once its time is over another one begins.",
    "shards.activate.before_commit": "The same.",
    "shards.activate.after_commit": "It is active, and members are not told: the answers to their next heartbeats do.",
    "shards.answers.before_send": "What was stored is not answered: it comes again, and is answered by another node.",
    "shards.heartbeats.after_commit": "Heartbeats are stored and not answered: that to the next one says it all.",
    "worker.after_receive": "Nothing is done; the broker delivers the commands again.",
    "worker.after_guard": "The same.",
    "worker.after_effect": "The work is done and not reported: the effect is found when the command is redelivered.",
    "worker.after_publish": "The event is sent, the command is redelivered: it is dropped, or its event is repeated.",
    "worker.after_confirm": "The same, although the broker had confirmed the event.",
    "worker.after_dead_letter": "The dead letter is sent, its message is redelivered: sent twice, stored once.",
    "worker.set_aside.before_publish": "Nothing is done; the broker delivers the command again, with one death more.",
    "worker.set_aside.after_publish": "It is at the end of its queue and redelivered: the guard lets one be done.",
    "worker.set_aside.after_confirm": "The same, although the broker had confirmed the copy.",
    "worker.jobs.after_receive": "Nothing is done; the broker delivers the dispatches again.",
    "worker.jobs.before_ack": "It counts as running, and its dispatch is redelivered: a second attempt begins.",
    "worker.jobs.during_work": "The work is half done: when heartbeats are missing, another attempt begins.",
    "worker.jobs.after_work": "The work is done and not reported: another attempt does it once more.",
    "worker.jobs.after_publish": "The message is sent, those that would follow are not: another attempt begins.",
    "worker.jobs.after_confirm": "The same; if it was the final status, the job has ended.",
}


OWN: Final = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)+")
"""How an author may name a point: two words or more, and none of `RESERVED` in front."""
RESERVED: Final = frozenset({*(name.partition(".")[0] for name in POINTS), "cmd", "evt"})
"""Prefixes of the library's own points, and of the names of commands and events."""


class _Countdown:
    """How often the point may still be passed; thread-safe."""

    def __init__(self, name: str, count: int) -> None:
        self.name = name
        self._count, self._passed = count, itertools.count(1)

    def passed(self, name: str) -> None:
        if name == self.name and next(self._passed) == self._count:
            # Bypasses the sink of stderr, whose thread is killed before it has written.
            os.write(STDERR, f"crash point {name}:{self._count} reached\n".encode())
            os._exit(EXIT_CODE)


_armed: _Countdown | None = None
_listener: Callable[[str], None] | None = None


def arm(environ: Mapping[str, str]) -> None:
    """Makes this process exit as ORCHESTRIX_CRASH_AT says; without ORCHESTRIX_TESTING=1 nothing happens.

    Raises `ConfigError` if no point can have that name, or the number of the passage is none. The points of the
    author's code are known only when they are reached.
    """
    global _armed
    wanted = environ.get(SETTING) if environ.get(SWITCH) == "1" else None
    _armed = _read(wanted) if wanted else None


def _read(wanted: str) -> _Countdown:
    match = re.fullmatch(r"([a-z0-9_.]+):([1-9][0-9]{0,8})", wanted)
    if match is None:
        raise ConfigError(f"{SETTING}={wanted}: write POINT:N for the N-th passage, e.g. outbox.after_publish:3")
    if match[1] not in POINTS and not is_own(match[1]):
        raise ConfigError(f"{SETTING}={wanted}: unknown crash point {match[1]}; known are {', '.join(POINTS)}")
    return _Countdown(match[1], int(match[2]))


def is_own(name: str) -> bool:
    """Whether an author may give a point this name."""
    return OWN.fullmatch(name) is not None and name.partition(".")[0] not in RESERVED


def point(name: str) -> None:
    """The process may be killed here."""
    if _armed is not None:
        _armed.passed(name)


def crash_point(name: str) -> None:
    """Marks a place in a handler or a job, such as `mail.sent`, at which a test may kill the process.

    Without a test nothing happens, nor is the name looked at. Elsewhere it raises `ConfigError` for a name that is not
    of two words or more, with dots between, or that begins like a point of the library, a command or an event.
    """
    if _armed is None and _listener is None:
        return
    if not is_own(name):
        example = "write two words with a dot, e.g. mail.sent"
        raise ConfigError(f"crash_point({name!r}): {example}, the first not one of {', '.join(sorted(RESERVED))}")
    if _listener is not None:
        _listener(name)
    point(name)


@contextmanager
def crash_point_listener(listener: Callable[[str], None]) -> Iterator[None]:
    """Calls `listener` each time that a `crash_point` is passed inside the block."""
    global _listener
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before


async def within(name: str, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns. The process may be killed where `work` first waits, or where it ends without waiting."""
    if _armed is None or _armed.name != name:
        return await work
    task = asyncio.ensure_future(work)
    try:
        await asyncio.sleep(0)
        point(name)
        return await task
    finally:
        task.cancel()
