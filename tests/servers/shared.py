"""Which server does a test share with the others, and how does it get its own corner of it?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, cast

from tests.servers import host, lookup, sql, templates
from tests.servers.base import Server
from tests.servers.management import ManagedBroker
from tests.servers.names import Pool
from tests.servers.run import Run


class Broker(Protocol):
    """A RabbitMQ on which virtual hosts can be made."""

    def url(self, vhost: str = "/") -> str:
        """The AMQP address of a virtual host."""

    def change_vhosts(self, add: Sequence[str], drop: Sequence[str]) -> None:
        """Adds and drops virtual hosts."""


class Database(Protocol):
    """A SQL server on which databases can be made."""

    def url(self, database: str = ...) -> str:
        """The address of a database for SQLAlchemy."""


class GivenDatabase:
    """A SQL server by its address. Its user must be allowed to make databases; the named one is not touched."""

    def __init__(self, url: str) -> None:
        self._url = url

    def url(self, database: str = "") -> str:
        """The address of a database, by default the given one."""
        return sql.with_database(self._url, database) if database else self._url


@contextmanager
def broker(run: Run) -> Iterator[Broker]:
    """The broker of the whole run: the given one, or a private one that is started here and ended."""
    address = lookup.given(lookup.RABBITMQ)
    if address:
        yield ManagedBroker(address)
        return
    with _started(lookup.RABBITMQ, run) as server:
        yield cast(Broker, server)


@contextmanager
def database(kind: lookup.Kind, run: Run) -> Iterator[Database]:
    """The SQL server of the whole run: the given one, or a private one that is started here and ended."""
    address = lookup.given(kind)
    if address:
        yield GivenDatabase(address)
        templates.dropped(address)
        return
    with _started(kind, run) as server:
        yield cast(Database, server)


@contextmanager
def pool(change: Callable[[Sequence[str], Sequence[str]], None], *, batch: int, keep: bool) -> Iterator[Pool]:
    """Names on a server; `keep` leaves them there at the end, because the server goes anyway."""
    names = Pool(change, batch=batch)
    try:
        yield names
    finally:
        if not keep:
            names.close()


@contextmanager
def lent(names: Pool) -> Iterator[str]:
    """One name for one test."""
    name = names.take()
    try:
        yield name
    finally:
        names.give_back(name)


@contextmanager
def _started(kind: lookup.Kind, run: Run) -> Iterator[Server]:
    if run.host is not None and lookup.find(kind) is lookup.Source.BINARIES:
        yield host.ask(run.host, kind, run)
        return
    server = lookup.private_server(kind, run)
    server.durable = False
    try:
        server.start()
        yield server
    finally:
        server.discard()
