"""Dead letters assembly: what a node does with messages that could not be handled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from orchestrix.bootstrap.context import ORCHESTRATOR, NodeContext
from orchestrix.broker.topology import SHARD_COORDINATOR
from orchestrix.dead_letters.collector import DeadLetterCollector
from orchestrix.dead_letters.job_dead_letters import JobDeadLetters
from orchestrix.dead_letters.quota import DeadLetterQuota
from orchestrix.dead_letters.service import DeadLetterService
from orchestrix.jobs.rescue.dead_dispatches import DeadDispatchHandler


@dataclass(frozen=True, slots=True)
class DeadLetterCollectors:
    """They store what is in the dead-letter queues of sagas, and in those of jobs and of shards."""

    sagas: DeadLetterCollector
    jobs: JobDeadLetters

    def problem(self) -> str | None:
        """What cannot be stored."""
        return self.sagas.problem() or self.jobs.problem()


@dataclass(frozen=True, slots=True)
class NodeDeadLetters:
    """A node's parts for dead letters; only an orchestrator collects them."""

    service: DeadLetterService
    collectors: DeadLetterCollectors | None


def assemble_dead_letters(node: NodeContext, dispatches: DeadDispatchHandler) -> NodeDeadLetters:
    """The parts; nothing of them runs yet. `dispatches` says what becomes of jobs whose dispatches are dead letters."""
    service = DeadLetterService(node.database, node.catalog, node.signals.outbox_ready.set)
    return NodeDeadLetters(service, _collectors(node, dispatches) if ORCHESTRATOR in node.roles else None)


def _collectors(node: NodeContext, dispatches: DeadDispatchHandler) -> DeadLetterCollectors:
    quota = DeadLetterQuota(node.settings.orchestrator.dead_letters_per_minute)
    ready = node.signals.outbox_ready.set
    make = partial(DeadLetterCollector, node.database, node.broker, node.catalog, ready, quota=quota)

    def of_jobs(queues: Sequence[str]) -> DeadLetterCollector:
        return make(queues=queues, on_stored=dispatches.died)

    async def queues() -> set[str]:
        return {*await dispatches.queues(), SHARD_COORDINATOR}

    return DeadLetterCollectors(make(), JobDeadLetters(node.broker, queues, of_jobs))
