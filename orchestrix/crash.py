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
    "start.before_commit": "Nothing is written, nobody was answered: the client asks again.",
    "start.after_commit": "The saga is there and nobody was answered; its command waits until its claim runs out.",
    "start.keyed_after_commit": "The same for a start with a key, whose repetition gets the stored answer.",
    "outbox.after_claim": "Rows are claimed by nobody who lives: they wait until the claim runs out.",
    "outbox.before_publish": "The same for rows that were claimed as they were written.",
    "outbox.after_publish": "The broker has the commands, the outbox too: each goes out twice under one id.",
    "outbox.after_confirm": "The same, although the broker had said that it has them.",
    "events.after_receive": "Nothing is written; the broker gives the events out again.",
    "events.before_commit": "Everything is rolled back; the broker gives the events out again.",
    "events.after_commit": "The sagas have moved; the events come again, the next commands wait for another scan.",
    "events.before_ack": "The same, but the next commands may be out already.",
    "events.after_burial": "The dead letter is out, and its message comes again: it is sent twice and kept once.",
    "begins.before_ack": "It is written that the work has begun; the word comes again and changes nothing.",
    "held.before_commit": "The event is held still: whoever looks next applies it.",
    "held.after_commit": "It is applied and forgotten; what the saga owes waits for whoever scans the outbox next.",
    "wakeups.before_commit": "What is due is due still, and written by whoever looks next.",
    "wakeups.after_commit": "What the sagas owe is in the outbox and waits for whoever scans it next.",
    "control.before_commit": "Nothing is written, the person was not answered: asking again does it.",
    "control.after_commit": "It is done and the person was not answered: asking again changes nothing.",
    "migrate.before_commit": "Nothing of this batch is written, what was committed stays: the next run goes on.",
    "migrate.after_commit": "The batch is moved and nobody was told: the next run finds the rest.",
    "redispatch.after_claim": "The new life of the broker has a name and no queue: the next node begins again.",
    "redispatch.before_declare": "The same; the commands that were sent meanwhile go out once more.",
    "redispatch.after_chunk": "Some go out again, and the person was not answered: asking again sends all once more.",
    "deadletters.before_commit": "Nothing is written; the broker gives the dead letters out again.",
    "deadletters.after_commit": "They are kept, and come again: each is known by what it is, and kept once.",
    "redrive.before_commit": "Nothing is written, the person was not answered: asking again does it.",
    "redrive.after_commit": "It will be sent and the person was not answered: asking again sends nothing more.",
    "jobs.submit.before_commit": "Nothing is written, nobody was answered: the client asks again.",
    "jobs.submit.after_commit": "The job is there and nobody was told: whoever leads finds it within seconds.",
    "jobs.dispatch.after_claim": "The jobs are due still: whoever leads next sends them.",
    "jobs.dispatch.before_commit": "The same; an attempt without a row has never been.",
    "jobs.dispatch.after_commit": "The order is in the outbox, and waits until its claim runs out.",
    "jobs.take.after_receive": "Nothing is written; the broker asks another node whose the jobs are.",
    "jobs.take.before_commit": "The same.",
    "jobs.take.after_commit": "The jobs are a dead node's, who reads nothing: they get another owner.",
    "jobs.take.before_answer": "The same, and who gave them away sees by the rows that they are taken.",
    "jobs.take.after_burial": "The dead letter is out, and its message comes again: it is sent twice and kept once.",
    "jobs.take.before_ack": "The same; the broker asks again, and nobody takes what has an owner.",
    "jobs.events.after_receive": "Nothing is written; the next owner hears it all again.",
    "jobs.events.before_commit": "The same.",
    "jobs.events.after_commit": "It is written, and the next owner hears it again: each word is known by its number.",
    "jobs.events.after_burial": "The dead letter is out, and its message comes again: it is sent twice and kept once.",
    "jobs.events.before_ack": "The same for the rest of a batch, whose first jobs are acknowledged.",
    "jobs.cancel.before_commit": "Nothing is written, the person was not answered: asking again does it.",
    "jobs.cancel.after_commit": "The worker was not told: it is at its next beat.",
    "jobs.sweep.before_commit": "What is overdue, silent or without owner is so still: the next leader finds it.",
    "jobs.sweep.after_commit": "The worker was not told, nor whoever sends what is due: both come a little later.",
    "jobs.handoff.before_mark": "The jobs are a dead node's: they get another owner.",
    "jobs.handoff.after_mark": "The same, under a mark that says why.",
    "jobs.handoff.after_publish": "The jobs are on offer: who takes them is their owner.",
    "jobs.handoff.after_confirm": "The same.",
    "jobs.handoff.after_answer": "Another node owns them, and reads them as soon as this one's channels are gone.",
    "jobs.handoff.after_close": "The same for the rest.",
    "jobs.end.before_delete": "The queues of ended jobs are there: the next owner deletes them a while later.",
    "jobs.end.after_delete": "The same; they are made anew for that, and are empty.",
    "jobs.end.after_commit": "Nothing is left to do.",
    "leader.after_token": "The broker gives the token to the next in line.",
    "leader.before_commit": "The same; the term has never begun.",
    "leader.after_commit": "A term in which nothing was done: the next one begins with the token.",
    "leader.after_mint": "There are two tokens: the older one is dropped, or costs one more term.",
    "leader.before_resign": "The token goes on to the next in line, though the lease still runs.",
    "leader.after_resign": "The same, and the lease has ended.",
    "nodes.death.before_commit": "The dead node counts as living, until the next leader has listened for a while.",
    "nodes.death.after_commit": "It is dead, and nobody was told: its jobs are found at the next look.",
    "schedules.fire.before_commit": "The schedule is due still, and has no job for that time.",
    "schedules.fire.after_commit": "The job is there and the schedule has moved on: both were one commit.",
    "schedules.release.before_commit": "The run waits for its turn still, which has come.",
    "schedules.release.after_commit": "The run may begin, and whoever leads finds it within seconds.",
    "worker.after_receive": "Nothing is done; the broker gives the commands out again.",
    "worker.after_guard": "The same.",
    "worker.after_effect": "The work is done and nobody knows: it is found done when the command comes again.",
    "worker.after_publish": "The event is out and the command comes again: it is dropped, or its event is repeated.",
    "worker.after_confirm": "The same, although the broker had said that it has the event.",
    "worker.after_burial": "The dead letter is out, and its message comes again: it is sent twice and kept once.",
    "worker.aside.before_publish": "Nothing is done; the broker gives the command out again, as once more dead.",
    "worker.aside.after_publish": "It is at the end of its queue and comes again: the guard lets one of both be done.",
    "worker.aside.after_confirm": "The same, although the broker had said that it has the later copy.",
    "worker.jobs.after_receive": "Nothing is done; the broker gives the orders out again.",
    "worker.jobs.before_ack": "It runs, as far as anybody knows, and its order comes again: a second try begins.",
    "worker.jobs.in_work": "The work is half done: when the worker is not heard any more, another try begins.",
    "worker.jobs.after_work": "The work is done and nobody knows: it is done once more, by another try.",
    "worker.jobs.after_publish": "The word is out; what follows it is not said, so that another try begins.",
    "worker.jobs.after_confirm": "The same; where it was the last word, the job has ended.",
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
