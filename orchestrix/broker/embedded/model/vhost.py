"""Virtual host: its queues and exchanges, and the routing of messages and dead letters."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from orchestrix import clock
from orchestrix.broker.embedded import errors
from orchestrix.broker.embedded.model.arguments import QueueSettings
from orchestrix.broker.embedded.model.exchanges import PREDECLARED, EmbeddedExchange, ExchangeSettings
from orchestrix.broker.embedded.model.message import Death, Message
from orchestrix.broker.embedded.model.ports import ConnectionPort
from orchestrix.broker.embedded.model.profile import Profile
from orchestrix.broker.embedded.model.queues import EmbeddedQueue

log = logging.getLogger(__name__)


class VirtualHost:
    """Isolated: nothing in it is seen from another. The default exchange is the table of queues itself."""

    def __init__(self, name: str, profile: Profile) -> None:
        self.name = name
        self.queues: dict[str, EmbeddedQueue] = {}
        self._profile = profile
        self._exchanges = {
            name: EmbeddedExchange(name, ExchangeSettings(kind, True, False, False, None))
            for name, kind in PREDECLARED.items()
        }

    def exchange(self, name: str) -> EmbeddedExchange:
        """Raises AmqpError 404."""
        if name not in self._exchanges:
            raise errors.not_found("exchange", name, self.name)
        return self._exchanges[name]

    def has_exchange(self, name: str) -> bool:
        return name in self._exchanges

    def queue(self, name: str, asker: ConnectionPort) -> EmbeddedQueue:
        """Raises AmqpError 404, and 405 where another connection owns it."""
        if name not in self.queues:
            raise errors.not_found("queue", name, self.name)
        queue = self.queues[name]
        if queue.owner is not None and queue.owner is not asker:
            raise errors.locked(name, self.name)
        return queue

    def declare_exchange(self, name: str, settings: ExchangeSettings) -> None:
        """Raises AmqpError 406 where it exists with other settings."""
        if name not in self._exchanges:
            self._exchanges[name] = EmbeddedExchange(name, settings)
            return
        current = self._exchanges[name].settings
        for arg, mine in current.by_argument().items():
            asked = settings.by_argument()[arg]
            if mine != asked:
                raise errors.inequivalent(arg, "exchange", name, self.name, asked, mine)

    def delete_exchange(self, name: str, *, if_unused: bool) -> None:
        """A missing one is no error. Raises AmqpError 406 where it is still used."""
        exchange = self._exchanges.get(name)
        if exchange is not None and if_unused and exchange.bindings:
            raise errors.precondition_failed(f"exchange '{name}' in vhost '{self.name}' in use")
        self._exchanges.pop(name, None)

    def declare_queue(self, name: str, settings: QueueSettings, asker: ConnectionPort) -> EmbeddedQueue:
        """Raises AmqpError 405 and 406."""
        if name not in self.queues:
            owner = asker if settings.exclusive else None
            self.queues[name] = EmbeddedQueue(name, settings, owner, self)
            return self.queues[name]
        queue = self.queue(name, asker)
        if queue.settings.exclusive != settings.exclusive:
            raise errors.locked(name, self.name)
        difference = queue.settings.first_difference(settings)
        if difference is not None:
            arg, asked, current = difference
            raise errors.inequivalent(arg, "queue", name, self.name, asked, current)
        return queue

    def delete_queue(self, queue: EmbeddedQueue) -> int:
        """How many messages it held ready."""
        if self.queues.get(queue.name) is not queue:
            return 0
        del self.queues[queue.name]
        for exchange in list(self._exchanges.values()):
            if exchange.forget(queue.name):
                self._delete_if_left(exchange)
        return queue.close()

    def unbind(self, exchange: EmbeddedExchange, queue: str, key: str) -> None:
        exchange.unbind(queue, key)
        self._delete_if_left(exchange)

    def _delete_if_left(self, exchange: EmbeddedExchange) -> None:
        if exchange.settings.auto_delete and not exchange.bindings:
            self._exchanges.pop(exchange.name, None)

    def drop_queues_of(self, owner: ConnectionPort) -> None:
        """The connection is gone, and its exclusive queues with it."""
        for queue in [queue for queue in self.queues.values() if queue.owner is owner]:
            self.delete_queue(queue)

    def route(self, exchange: str, routing_key: str) -> list[EmbeddedQueue]:
        """The queues that a message reaches. Raises AmqpError 404 for an unknown exchange."""
        if not exchange:
            return [self.queues[routing_key]] if routing_key in self.queues else []
        for tried in self._with_alternates(self.exchange(exchange)):
            names = tried.route(routing_key)
            if names:
                return [self.queues[name] for name in names]
        return []

    def _with_alternates(self, exchange: EmbeddedExchange) -> Iterator[EmbeddedExchange]:
        """The exchange, its alternate, that one's alternate, as far as they exist and are new."""
        seen: set[str] = set()
        following: EmbeddedExchange | None = exchange
        while following is not None and following.name not in seen:
            seen.add(following.name)
            yield following
            following = self._exchanges.get(following.settings.alternate or "")

    def dead_letter(self, queue: EmbeddedQueue, message: Message, reason: str) -> None:
        """Dead-letter a message; where its queue has no dead-letter exchange it is lost (at most once, as RabbitMQ)."""
        target = queue.settings.dead_letter_exchange
        if target is None or (target and target not in self._exchanges):
            log.debug("message dropped from queue %s: %s", queue.name, reason)
            return
        expiration = None if message.expiration is None else str(message.expiration)
        death = Death(queue.name, reason, message.exchange, message.routing_key, clock.now(), expiration=expiration)
        dead_letter = message.died(
            death, target, queue.settings.dead_letter_key, last_headers=self._profile.last_death_headers
        )
        for other in self.route(target, dead_letter.routing_key):
            if reason == "rejected" or not dead_letter.is_in_cycle(other.name):
                other.publish(dead_letter)
