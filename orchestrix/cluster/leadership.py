"""Leader election: how a node gains, keeps and gives up leadership."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from typing import Final

from orchestrix import clock, crash
from orchestrix.broker.port import Broker, Consumer, Delivery, LinkState, Outcome, Queue, Topology
from orchestrix.broker.topology import LEADER, SINGLE
from orchestrix.cluster.election_tokens import read_token, token_message
from orchestrix.cluster.leadership_term import LeadershipTerm
from orchestrix.cluster.lease_store import LeaseStore
from orchestrix.cluster.term_tasks import cancelled, log_elected, log_lost, single_delivery, stopped
from orchestrix.domain.leases import (
    INITIAL_TOKEN,
    Candidacy,
    Fence,
    LeaderMode,
    LeaderToken,
    TokenHandling,
    WaitingCandidate,
    campaign_delay_s,
    handling,
)
from orchestrix.errors import RetryableError, StaleTermError, Unavailable
from orchestrix.leader_duties import Duty
from orchestrix.lifecycle import Loop, Services, abandon, backoff

log = logging.getLogger("orchestrix.cluster")

TOKEN_REFRESH_INTERVAL_S: Final = 300.0
"""Seconds after which the held token is replaced: brokers requeue what is held for half an hour."""
TOKEN_RETRY_INTERVAL_S: Final = 2.0
"""The same where the broker has not confirmed the last one."""
CONFIRM_TIMEOUT_S: Final = 5.0
TOKEN_RETURN_TIMEOUT_S: Final = 1.0
"""Seconds in which a fresh token comes back to a leader that is first in the election queue."""
INITIAL_TOKEN_TIMEOUT_S: Final = 1.0
"""Seconds in which an initial token reaches the first node of the election queue, unless that hangs."""
DUTIES_STOP_TIMEOUT_S: Final = 0.25
"""Seconds that the duties have to stop before the successor is let in; its term keeps them from writing anyway."""
DUTIES_ABANDON_TIMEOUT_S: Final = 3.0
"""Seconds more after which they are abandoned, so that a node ends, or rejoins the election, whatever they do."""
LAST_WRITE_TIMEOUT_S: Final = 1.0
"""Seconds that the successor waits for the last write of a leader."""
LATE_LAST_WRITE_TIMEOUT_S: Final = 5.0
"""The same write may take so long where it shows whether others have begun a term while this leader stalled."""
ELECTION_QUEUE: Final = Topology(queues=(Queue(LEADER, SINGLE),))


class Leadership:
    """A node's part in the election, and the leader's duties while it leads.

    `broker` is a link that carries no other work; `lease` and `renew` are in seconds. `single_node`: see
    `WaitingCandidate`.
    """

    def __init__(
        self,
        lease_store: LeaseStore,
        broker: Broker,
        node_id: str,
        duties: Sequence[Duty],
        *,
        lease: float,
        renew: float,
        single_node: bool = False,
    ) -> None:
        self._lease_store, self._broker, self._node_id, self._duties = lease_store, broker, node_id, duties
        self._lease, self._renew_every, self._single_node = lease, renew, single_node
        self._consumer: Consumer | None = None
        self._term: LeadershipTerm | None = None
        self._losses = 0
        self._up_at: float | None = None
        self._leaving = False
        self._began = clock.monotonic()
        self._ending: asyncio.Task[None] | None = None
        self._token_passed_on = asyncio.Event()
        self._loop = Loop("leadership", self._round)
        broker.on_up(self._linked)
        broker.on_down(lambda generation, why: self._link_lost(why))

    @property
    def fence(self) -> Fence | None:
        """The fence of this node's writes as the leader; None while it does not lead, as far as it knows."""
        term = self._term
        return term.fence if term is not None and clock.monotonic() < term.until else None

    @property
    def lease_remaining_s(self) -> float | None:
        """Seconds until its lease expires; None while it does not lead."""
        term = self._term
        return None if term is None else max(0.0, term.until - clock.monotonic())

    async def start(self) -> None:
        """Begins to wait for leadership. The broker may be down."""
        self._began = clock.monotonic()
        if self._broker.state is LinkState.UP and self._up_at is None:
            self._linked(self._broker.generation)
        await self._loop.start()

    async def stop(self) -> None:
        """Resigns, if it leads, and hands the token on; then the duties have ended, or are abandoned after
        `DUTIES_ABANDON_TIMEOUT_S`.
        """
        self._leaving = True
        await self._loop.stop()
        if self._ending is not None:
            await self._token_passed_on.wait()
        await self._leave_election()

    # Callbacks of the link.

    def _linked(self, generation: int) -> None:
        self._up_at = clock.monotonic()
        if self._term is not None:
            self._term.wake.set()

    def _link_lost(self, reason: str) -> None:
        self._up_at = None
        self._channel_lost(reason)

    def _channel_lost(self, reason: str) -> None:
        self._losses += 1
        if self._term is not None and self._term.mode is LeaderMode.BROKER:
            self._term.lose(reason)
        elif self._term is not None:
            self._term.publish_token_at = 0.0  # it leads on, but its token may be gone with the queue

    # Waiting, campaigning, and leading, in turns.

    async def _round(self) -> None:
        await self._join_election()
        token = await self._wait_for_turn()
        if token is not None and self._consumer is not None and not self._consumer.alive(token):
            return
        crash.point("leader.after_token")
        losses, asked = self._losses, clock.monotonic()
        mode = LeaderMode.BROKER if token is not None or self._broker.state is LinkState.UP else LeaderMode.BROKERLESS
        try:
            candidacy = Candidacy(self._node_id, mode, token is not None, there=asked - self._began)
            fence = await self._lease_store.campaign(candidacy, asked)
            if fence is not None:
                crash.point("leader.after_commit")
                term = self._begin_term(fence, mode, asked + self._lease, token)
                if losses != self._losses and mode is LeaderMode.BROKER:
                    term.lose("the broker connection was lost during the election")
                await self._lead(term)
        except Exception:
            await self._leave_election()  # and come back after a while: nodes in the election queue must respond
            raise
        if fence is not None:
            await self._leave_election()

    async def _join_election(self) -> None:
        if self._consumer is None:
            self._consumer = await self._broker.consume([LEADER], 1, own_topology=ELECTION_QUEUE)
            self._consumer.on_channel_lost(lambda: self._channel_lost("the channel of the election queue was closed"))

    async def _leave_election(self) -> None:
        """Hands the token on; then the duties have ended, or are abandoned."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.close()
        if self._ending is not None:
            await asyncio.wait({self._ending})  # a cancelled caller does not cancel it, for the duties would continue
            self._ending.result()

    def _begin_term(self, fence: Fence, mode: LeaderMode, until: float, token: Delivery | None) -> LeadershipTerm:
        assert self._consumer is not None
        lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        return LeadershipTerm(fence, mode, until, [] if token is None else [token], self._consumer, lost)

    async def _wait_for_turn(self) -> Delivery | None:
        """A token, as soon as there is one; None when the node may campaign without."""
        assert self._consumer is not None
        token = asyncio.ensure_future(self._consumer.receive(1))
        vacancy = asyncio.ensure_future(self._wait_for_vacancy())
        try:
            await asyncio.wait({token, vacancy}, return_when=asyncio.FIRST_COMPLETED)
            if token.done():
                return single_delivery(token.result())
            vacancy.result()
            return None
        finally:
            await cancelled({token, vacancy})

    async def _wait_for_vacancy(self) -> None:
        """Returns when there is no leader, by the row, and this node has waited for long enough."""
        began, jitter, sown = clock.monotonic(), clock.uniform(0.0, 1.0), False
        failures = 0
        while True:
            left = await self._check_lease(began, jitter)
            failures = failures + 1 if left is None else 0
            if left is None:
                left = backoff(failures)
            elif left <= 0:
                if sown or not await self._publish_initial_token():
                    return
                sown, left = True, INITIAL_TOKEN_TIMEOUT_S * (1 + jitter)
            elif sown and left > INITIAL_TOKEN_TIMEOUT_S:
                sown = False
            await asyncio.sleep(min(left, self._renew_every / 2))

    async def _check_lease(self, began: float, jitter: float) -> float | None:
        """Seconds until the node may campaign without a token; None while the database is unavailable."""
        try:
            lease = await self._lease_store.read()
        except RetryableError as error:
            log.debug("cannot read the lease: %s", error)
            return None
        now = clock.monotonic()
        linked = 0.0 if self._up_at is None else now - self._up_at
        return campaign_delay_s(
            WaitingCandidate(self._node_id, now - began, linked, self._lease, jitter, self._single_node), lease
        )

    async def _publish_initial_token(self) -> bool:
        """Publishes an initial token, for the first in the election queue; False if the broker does not take it."""
        if self._broker.state is not LinkState.UP:
            return False
        (published,) = await self._broker.publish([token_message(INITIAL_TOKEN)], CONFIRM_TIMEOUT_S)
        return published.outcome is Outcome.CONFIRMED

    async def _lead(self, term: LeadershipTerm) -> None:
        self._term = term
        log_elected(term.fence.term, term.mode)
        services = Services([duty(term.fence) for duty in self._duties])
        begun = asyncio.create_task(services.start(), name="duties")
        term.tasks = {
            begun,
            asyncio.create_task(self._keep_lease(term), name="lease"),
            asyncio.create_task(self._keep_token(term), name="token"),
        }
        try:
            while not term.lost.done():
                await self._watch(term)
            log_lost(term.fence.term, term.lost.result())
        finally:
            self._term = None
            self._token_passed_on.clear()
            # A task of its own, which outlives a cancelled caller.
            self._ending = asyncio.create_task(self._end(term, services), name="end of the leadership term")
            await self._token_passed_on.wait()

    async def _end(self, term: LeadershipTerm, services: Services) -> None:
        """Stops the duties. `_token_passed_on` is set when the successor may come: they have stopped, or take long."""
        late = clock.monotonic() >= term.until  # whatever else was noticed first
        stopping = asyncio.create_task(stopped(term.tasks, services), name="stop of the leader duties")
        last = {stopping}
        try:
            await asyncio.wait(last, timeout=DUTIES_STOP_TIMEOUT_S)
            if self._leaving or late:
                word = asyncio.create_task(
                    self._resign(term, LATE_LAST_WRITE_TIMEOUT_S if late else LAST_WRITE_TIMEOUT_S), name="resign"
                )
                await asyncio.wait({word}, timeout=LAST_WRITE_TIMEOUT_S)
                last.add(word)
        finally:
            self._token_passed_on.set()
        over, still = await asyncio.wait(last, timeout=DUTIES_ABANDON_TIMEOUT_S)
        abandon(*still)
        if stopping in still:
            log.error(
                "leader duties of term %d did not stop in time and are abandoned; their later writes are refused",
                term.fence.term,
            )
        for task in over:
            task.result()

    async def _watch(self, term: LeadershipTerm) -> None:
        """Until something happens to the term, at most until its lease has expired."""
        left = term.until - clock.monotonic()
        if left <= 0:
            return term.lose("the lease expired")
        await asyncio.wait({term.lost, *term.tasks}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        for task in [task for task in term.tasks if task.done()]:
            term.tasks.discard(task)
            if (error := task.exception()) is not None:
                log.error("a leader task failed", exc_info=error)
                term.lose(f"{task.get_name()} failed with {type(error).__name__}")
            elif (why := task.result()) is not None:
                term.lose(why)
        return None

    async def _resign(self, term: LeadershipTerm, timeout_s: float) -> None:
        """Marks the row, if that is possible in time. Where a newer term began, its refusal is seen here."""
        try:
            async with asyncio.timeout(timeout_s):
                crash.point("leader.before_resign")
                await self._lease_store.resign(term.fence)
                crash.point("leader.after_resign")
        except StaleTermError as refused:
            log.warning("%s", refused)
        except (RetryableError, TimeoutError):
            log.info("cannot record the end of term %d: its lease will expire", term.fence.term)

    # The lease.

    async def _keep_lease(self, term: LeadershipTerm) -> str:
        """Renews it; returns why that is over."""
        failures, first = 0, True
        while True:
            try:
                if first:
                    await self._lease_store.record_first_write(term.fence)
                    first = False
                else:
                    await self._renew(term)
                failures = 0
            except StaleTermError as refused:
                log.warning("%s", refused)
                return "a newer term began"
            except (RetryableError, TimeoutError) as error:
                log.debug("term %d: %s", term.fence.term, error)
                failures += 1
            # In an outage it is asked again soon: the lease is running.
            await term.wake.wait(min(backoff(failures), self._renew_every / 5) if failures else self._renew_every)

    async def _renew(self, term: LeadershipTerm) -> None:
        """Counts from before the request: the answer may have been long on its way."""
        asked = clock.monotonic()
        linked = self._broker.state is LinkState.UP
        mode = LeaderMode.BROKER if linked or term.mode is LeaderMode.BROKER else LeaderMode.BROKERLESS
        async with asyncio.timeout(self._lease / 3):
            await self._lease_store.renew(term.fence, mode)
        term.until = asked + self._lease
        if mode is not term.mode:
            term.mode = mode
            log_elected(term.fence.term, mode)
            if self._broker.state is not LinkState.UP:
                term.lose("the broker connection was lost again")

    # The token.

    async def _keep_token(self, term: LeadershipTerm) -> str:
        """Makes sure that there is a token of this term, and holds it; returns why that is over."""
        while True:
            if clock.monotonic() >= term.publish_token_at:
                await self._publish_token(term)
            try:
                delivery = await self._next_token(term)
            except Unavailable as closed:
                return str(closed)
            if delivery is None:
                continue
            term.awaited_until = None
            outcome = handling(read_token(delivery.body), term.fence)
            if outcome is TokenHandling.CAMPAIGN:
                return "a newer election token arrived"
            if outcome is TokenHandling.DROP and term.token_published:
                await term.consumer.acknowledge([delivery])
            else:
                term.tokens.append(delivery)

    async def _next_token(self, term: LeadershipTerm) -> Delivery | None:
        """None when it may be time for a fresh one, or when the last one has gone to another node."""
        until = min(term.publish_token_at, clock.monotonic() + TOKEN_RETRY_INTERVAL_S, term.awaited_until or math.inf)
        try:
            async with asyncio.timeout(max(0.0, until - clock.monotonic())):
                return single_delivery(await term.consumer.receive(1))
        except TimeoutError:
            if term.awaited_until is not None and clock.monotonic() >= term.awaited_until:
                term.awaited_until = None
                term.wake.set()  # the node that has it may lead by now: the row says so
            return None

    async def _publish_token(self, term: LeadershipTerm) -> None:
        """Publishes a fresh token; only when the broker has confirmed it, the held ones are acknowledged."""
        term.publish_token_at = clock.monotonic() + TOKEN_RETRY_INTERVAL_S
        if self._broker.state is not LinkState.UP:
            return
        mine = LeaderToken(term.fence.term, term.fence.holder)
        (published,) = await self._broker.publish([token_message(mine)], CONFIRM_TIMEOUT_S)
        if published.outcome is Outcome.CONFIRMED:
            crash.point("leader.after_new_token")
            term.token_published = True
            term.publish_token_at = clock.monotonic() + TOKEN_REFRESH_INTERVAL_S
            term.awaited_until = clock.monotonic() + TOKEN_RETURN_TIMEOUT_S
            former, term.tokens = term.tokens, []
            await term.consumer.acknowledge(former)
