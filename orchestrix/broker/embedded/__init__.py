"""How does `dev` run the very AMQP code that production runs, with nothing installed?

A small AMQP 0-9-1 server. What it has, it does as RabbitMQ does, and one conformance suite runs against both:

    connections   PLAIN with any user, virtual hosts made on first use, heartbeats, frames up to 131,072 bytes, blocked
    exchanges     default, direct, topic, fanout; alternate-exchange, internal, auto-delete
    queues        classic and quorum; exclusive, auto-delete, server-named; dead letters, delivery limit, single active
                  consumer, max-length (drops the oldest), message-ttl
    publishing    confirms, mandatory returns, expiration, bodies up to the profile's limit
    consuming     prefetch per consumer, ack, nack, reject, get, recover, x-delivery-count, cancel by the server

Everything else is refused with a reason: transactions, exchange-to-exchange bindings, headers exchanges, priorities,
streams, shared prefetch, CC and BCC, x-expires, and every argument that it does not know. Messages are kept in memory
and are gone at its end. Only loopback addresses are served, because everybody is let in.
"""

from orchestrix.broker.embedded.server import EmbeddedBroker

__all__ = ["EmbeddedBroker"]
