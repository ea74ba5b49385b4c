"""Where does a server for the tests come from: from its address in the environment, from binaries, or from Docker?"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cache

from tests.servers import maria, postgres, rabbit
from tests.servers.base import Server
from tests.servers.containers import CONTAINERS, docker_answers
from tests.servers.run import Run


class Missing(Exception):
    """None of the places has the server. A test that needs it fails with this sentence; it is never skipped."""


class Source(Enum):
    """The places, in the order in which they are asked."""

    GIVEN = "given"
    BINARIES = "binaries"
    DOCKER = "docker"


@dataclass(frozen=True)
class Kind:
    """One of the three kinds of server."""

    name: str
    variable: str
    package: str
    """The Debian package that has the binaries."""
    binaries: Callable[[], object | None]
    private: Callable[[Run], Server | None]
    """A server from binaries, not started."""


def _rabbit(run: Run) -> Server | None:
    folder = rabbit.find()
    return rabbit.RabbitServer(folder, run) if folder else None


def _postgres(run: Run) -> Server | None:
    folder = postgres.find()
    return postgres.PostgresServer(folder, run) if folder else None


def _maria(run: Run) -> Server | None:
    found = maria.find()
    return maria.MariaServer(found, run) if found else None


RABBITMQ = Kind("RabbitMQ", "ORCHESTRIX_TEST_RABBITMQ_URL", "rabbitmq-server", rabbit.find, _rabbit)
POSTGRESQL = Kind("PostgreSQL", "ORCHESTRIX_TEST_POSTGRESQL_URL", "postgresql", postgres.find, _postgres)
MARIADB = Kind("MariaDB", "ORCHESTRIX_TEST_MARIADB_URL", "mariadb-server", maria.find, _maria)
KINDS = (RABBITMQ, POSTGRESQL, MARIADB)


def given(kind: Kind) -> str | None:
    """The address from the environment, or None."""
    return os.environ.get(kind.variable) or None


@cache
def find(kind: Kind) -> Source | None:
    """The first place that has the server, or None."""
    if given(kind):
        return Source.GIVEN
    if kind.binaries() is not None:
        return Source.BINARIES
    return Source.DOCKER if docker_answers() else None


def private_server(kind: Kind, run: Run) -> Server:
    """A server that the test may stop and kill, not started: from binaries or from Docker, never the given one.

    Raises Missing.
    """
    server = kind.private(run)
    if server is not None:
        return server
    if docker_answers():
        return CONTAINERS[kind.package](run)
    raise Missing(missing(kind))


def missing(kind: Kind) -> str:
    """The sentence for a server that is nowhere."""
    return (
        f"{kind.name} is missing: run `make services`, install the package {kind.package}, start Docker, "
        f"or set {kind.variable} (tests that stop servers need the binaries or Docker)"
    )
