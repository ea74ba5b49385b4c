"""Worker explanation: what is said of a saga while the workers it needs, or this node, start or stop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from orchestrix.quantities import counted, duration
from orchestrix.saga.definition import Order
from orchestrix.saga.state import BACKLOG, Instance

_TRANSIENT_CODES: Final = frozenset({"overdue", "broker_down", "unsent", "no_consumer"})
"""The codes that a node which is only starting reports of much that continues as soon as it has started."""


@dataclass(frozen=True, slots=True)
class UnconsumedQueues:
    """The queues that a saga needs and that have no consumer, with how many messages they have.

    `taken` is the command that was sent and is waited for, if one is; `leaving` says that this process stops, and its
    own worker with it.
    """

    queues: Mapping[str, int]
    taken: str | None = None
    leaving: bool = False

    def __bool__(self) -> bool:
        return bool(self.queues)

    def describe(self) -> str:
        """The state as a part of a sentence."""
        found = " and ".join(self._queue(name, count) for name, count in self.queues.items())
        return f"{found}; this `orchestrix dev` is stopping together with its worker" if self.leaving else found

    def helps(self) -> str:
        """What to do, without a full stop."""
        if self.leaving:
            return "Start `orchestrix dev` again once it has stopped: the work resumes"
        another = "another" if self._is_taken() else "a"
        return f"Start {another} worker with `orchestrix worker {' '.join(f'-q {name}' for name in self.queues)}`"

    def _queue(self, name: str, count: int) -> str:
        there = f"{name} has {counted(count, 'message')} and no consumer"
        if name != self.taken or not self._is_taken():
            return there
        return f"{there}: its last worker is still processing this command, but is stopping or takes no more for now"

    def _is_taken(self) -> bool:
        """A command that was sent and is not in its queue was taken: by a worker that does not consume any more."""
        return not self.leaving and self.queues.get(self.taken or "") == 0


def queued_behind_others(order: Order, instance: Instance, count: tuple[int, int], tries: str) -> tuple[str, str, str]:
    """(code, sentence, action) of a command whose start no worker has reported, while its queue has so many messages
    and consumers. Only after its first time-out is it known to be among them."""
    messages, consumers = count
    if instance.wake_reason == BACKLOG:
        stands = f"waits in its queue behind {counted(messages - 1, 'other')}"
    else:
        stands = f"may wait in its queue behind up to {counted(messages, 'other')}"
    limit = order.queue_timeout
    ends = f" It fails when it has waited there for {duration(limit.total_seconds())}." if limit is not None else ""
    sentence = f"{order.command} {stands}, read by {counted(consumers, 'consumer')} (attempt {tries})"
    return "backlog", f"{sentence}. Waiting does not use up its timeout.{ends}", "Wait, or start more workers."


def without_action(code: str, sentence: str, action: str) -> tuple[str, str, str]:
    """The same of a node that is only starting: the operator need not do what it is about to do itself."""
    return code, sentence, "Wait: this node is still starting." if code in _TRANSIENT_CODES else action
