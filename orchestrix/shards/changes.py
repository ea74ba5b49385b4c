"""Service changes: applies events to a stored service, each batch in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from orchestrix import crash
from orchestrix.domain.shards import service as rules_of
from orchestrix.domain.shards.generations import GenerationState
from orchestrix.domain.shards.members import MOST_SERVICES
from orchestrix.domain.shards.state import (
    Assignment,
    Effect,
    Event,
    GenerationChange,
    MemberHeartbeat,
    MemberRegistration,
    ShardRules,
)
from orchestrix.errors import ConflictError, Contention
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.shards import service_store, services

TOO_MANY_SERVICES: Final = (
    f"{MOST_SERVICES} services have members, and no more can: stop the members of one, or join one of these"
)


class TooManyServices(ConflictError):
    """As many services have members as may have."""


class ServiceChanges:
    """Changes what is stored. The effects are the caller's to send: they come after the commit."""

    def __init__(self, database: Database, rules: ShardRules) -> None:
        self._database, self._rules = database, rules

    async def apply(self, service: str, events: Sequence[Event]) -> list[Effect]:
        """What follows from these events, in this order, after their commit.

        A service of which nothing is known begins with its first member. Raises `RetryableError`.
        """
        try:
            effects = await self._database.run(lambda tx: self._apply(tx, service, events))
        except TooManyServices:
            return [effect for event in events if (effect := _refused(event)) is not None]
        crash.point("shards.change.after_commit")
        if _activates(effects):
            crash.point("shards.activate.after_commit")
        return effects

    async def _apply(self, tx: Transaction, service: str, events: Sequence[Event]) -> list[Effect]:
        joins = [one for one in events if isinstance(one, MemberRegistration | MemberHeartbeat)]
        stored = await service_store.lock(tx, service)
        if stored is None and joins:  # not before the lock: on MariaDB an insert that finds the row shares its lock
            await services.insert_if_absent(tx, service, joins[0].shard_count, tx.now())
            stored = await service_store.lock(tx, service)
        if stored is None:
            return []
        if joins and not stored.state.members and await services.count_with_members(tx) >= MOST_SERVICES:
            raise TooManyServices(TOO_MANY_SERVICES)
        now = tx.now()  # not before the lock: meanwhile others may have stored later signs of life
        after, effects = rules_of.apply(stored.state, events, now, self._rules)
        try:
            await service_store.save(tx, stored.state, after, now)
        except ConflictError as error:  # another node has just become the leader of the generation
            raise Contention(str(error)) from error
        crash.point("shards.change.before_commit")
        if _activates(effects):
            crash.point("shards.activate.before_commit")
        return effects


def _activates(effects: Sequence[Effect]) -> bool:
    return any(isinstance(one, GenerationChange) and one.state is GenerationState.ACTIVE for one in effects)


def _refused(event: Event) -> Assignment | None:
    if not isinstance(event, MemberRegistration | MemberHeartbeat):
        return None
    return Assignment(event.worker_id, event.instance, event.reply_to, 0, event.seq, (), TOO_MANY_SERVICES, event.via)
