"""Executor call rules: what follows from the answer to a call, and when an attempt of an executor is lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from typing import Final

from orchestrix.domain.jobs import DISPATCHED, FAILED, LOST, AttemptEnding, JobRow
from orchestrix.domain.registry.routing import Strategy

CALL_PAUSE_S: Final = 1.0
MOST_PAUSE_S: Final = 30.0
"""Seconds before an executor is called again that was busy or gave no answer: doubled each time, up to the last."""


class CallAnswer(Enum):
    """What an executor's answer to a call means."""

    TAKEN = "taken"
    """It has the attempt: it will run it, runs it, or has run it."""
    BUSY = "busy"
    """It surely has not taken it now."""
    REFUSED = "refused"
    """It will never take it."""
    UNKNOWN = "unknown"
    """It may have taken it: the connection was lost, or the answer is late."""
    NOT_CALLED = "not called"
    """It surely has not got this call: it waited for too long behind others without an answer."""
    NOT_REACHED = "not reached"
    """No connection was made, so it surely has not taken it by this call."""


class Next(Enum):
    """What the owner of an attempt does after an answer."""

    FOLLOW = "follow"
    """Waits for its reports, and asks now and then whether it still has it."""
    SAME = "same"
    """Calls the same address again, with the same history id."""
    OTHER = "other"
    """Picks again: the last address surely does not have it."""
    END = "end"
    """The attempt has ended."""


@dataclass(frozen=True, slots=True)
class CallState:
    """What this node knows of the calls of one attempt to its present address.

    `unsure` says that an earlier call may have been taken: by this node, or by the owner before it.
    """

    unsure: bool
    calls: int = 0

    def called(self, answer: CallAnswer) -> CallState:
        """After one more call."""
        return replace(self, calls=self.calls + 1, unsure=self.unsure or answer is CallAnswer.UNKNOWN)


def next_step(strategy: str, state: CallState, answer: CallAnswer) -> Next:
    """What follows from `answer`, where `state` is that before the call.

    What may have been taken is only ever asked for at the same address. FAILOVER moves on within the attempt; with any
    other strategy an executor that is not there costs a try.
    """
    match answer:
        case CallAnswer.TAKEN:
            return Next.FOLLOW
        case CallAnswer.REFUSED:
            return Next.END
        case CallAnswer.UNKNOWN:
            return Next.SAME
        case CallAnswer.BUSY:
            return Next.OTHER
        case CallAnswer.NOT_CALLED:
            return Next.SAME if state.unsure else Next.OTHER
        case CallAnswer.NOT_REACHED:
            if state.unsure:
                return Next.SAME
            return Next.OTHER if strategy == Strategy.FAILOVER else Next.END


def pause_s(calls: int) -> float:
    """Seconds until the next call after so many."""
    return float(min(CALL_PAUSE_S * 2 ** min(max(calls - 1, 0), 10), MOST_PAUSE_S))


def candidate(addresses: Sequence[str], tried: Sequence[str]) -> str | None:
    """The first address that was not tried in this attempt; None where all were."""
    return next((one for one in addresses if one not in tried), None)


def refused(address: str, detail: str) -> AttemptEnding:
    """The ending of an attempt that its executor will never take."""
    message = f"the executor at {address} refuses the job: {detail}"
    return AttemptEnding(FAILED, {"type": "ExecutorRefused", "message": message}, retryable=False, answered=True)


def not_reached(addresses: Sequence[str], detail: str) -> AttemptEnding:
    """The ending of an attempt whose executors cannot be reached."""
    message = f"no connection to the executor at {', '.join(addresses)}: {detail}"
    return AttemptEnding(FAILED, {"type": "ExecutorNotReached", "message": message}, answered=True)


def no_executors(detail: str) -> AttemptEnding:
    """The ending of an attempt for which the group has no executor: one may register before the next try."""
    return AttemptEnding(FAILED, {"type": "NoExecutors", "message": detail}, answered=True)


def no_group(group: str) -> AttemptEnding:
    """The ending of an attempt whose group is not there: it was deleted, or a step of a saga names none."""
    error = {"type": "NoGroup", "message": f"there is no executor group {group!r}"}
    return AttemptEnding(FAILED, error, retryable=False, answered=True)


def lost(address: str, detail: str) -> AttemptEnding:
    """The ending of an attempt that its executor does not have, or is silent."""
    return AttemptEnding(LOST, {"type": "ExecutorLost", "message": f"the executor at {address} {detail}"})


def is_silent(heard: Sequence[datetime | None], now: datetime, listened_s: float, limit_s: float) -> bool:
    """Whether an attempt was silent for `limit_s` seconds in which this node listened.

    `listened_s` is for how long it has listened without a break. A sign of life is a report, or an answer to a call.
    """
    known = [at for at in heard if at is not None]
    return bool(known) and min((now - max(known)).total_seconds(), listened_s) >= limit_s


def is_restarted(called_at: datetime | None, registered_at: datetime | None) -> bool:
    """Whether the process at an executor's address has registered only after the attempt was given to that address.

    It may be the same process, which was called before its first heartbeat: it says then that it has the attempt.
    """
    return called_at is not None and registered_at is not None and registered_at > called_at


def called(job: JobRow, address: str, now: datetime) -> JobRow:
    """The attempt is given to the executor at `address`. An answer of another one is not waited for any more."""
    assert job.state == DISPATCHED, "none has begun it"
    return replace(job, address=address, called_at=now, worker_beat_at=None, version=job.version + 1, updated_at=now)
