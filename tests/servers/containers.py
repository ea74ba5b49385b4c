"""How does a server run where only Docker is at hand?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

from tests.servers.base import Server
from tests.servers.management import ManagedBroker
from tests.servers.ports import free_port
from tests.servers.rabbit import amqp_url, speaks_amqp
from tests.servers.run import Run
from tests.servers.sql import answers_sql

_SECRET = "secret"


@cache
def docker_answers() -> bool:
    """Whether a Docker engine answers within two seconds."""
    import docker  # only where binaries are missing: the import alone takes a third of a second

    try:
        client = docker.from_env(timeout=2)
    except (docker.errors.DockerException, OSError):
        return False
    try:
        return bool(client.ping())
    except (docker.errors.DockerException, OSError):
        return False
    finally:
        client.close()


class ContainerServer(Server):
    """A server in a container, with the verbs of a private one. Its port stays the same over stop and start."""

    kind = "container"
    user = "nobody"
    image: ClassVar[str]
    inside: ClassVar[int]
    """The port that the server listens on in its container."""
    settings: ClassVar[Mapping[str, str]] = {}

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._container: Any = None

    @property
    def running(self) -> bool:
        if self._container is None:
            return False
        self._container.reload()
        return str(self._container.status) in {"running", "paused", "created"}

    def launch(self) -> None:
        if self._container is None:
            self._container = self._create()
        else:
            self._container.start()

    def stop(self) -> None:
        if self._container is not None:
            self._container.stop(timeout=30)

    def kill9(self) -> None:
        if self.running:
            self._container.kill(signal="SIGKILL")

    def pause(self) -> None:
        self._container.pause()

    def resume(self) -> None:
        self._container.unpause()

    def discard(self) -> None:
        if self._container is not None:
            self._container.remove(force=True, v=True)
            self._container = None

    def log_tail(self, lines: int = 40) -> str:
        return self._container.logs(tail=lines).decode(errors="replace") if self._container else "(no log)"

    def ports(self) -> dict[int, int]:
        """Ports inside and outside."""
        return {self.inside: self.port}

    def prepare(self) -> None:
        """The image brings everything."""

    def argv(self) -> list[str]:
        """The image's own command."""
        return []

    def _create(self) -> Any:
        from testcontainers.core.container import DockerContainer

        container = DockerContainer(self.image)
        for name, value in self.settings.items():
            container = container.with_env(name, value)
        for inside, outside in self.ports().items():
            container = container.with_bind_ports(inside, outside)
        return container.start().get_wrapped_container()


class RabbitContainer(ContainerServer):
    """RabbitMQ with its management API, by which virtual hosts are made."""

    kind = "rabbitmq"
    image = "rabbitmq:3.13-management"
    inside = 5672

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._api_port = free_port()

    def ports(self) -> dict[int, int]:
        return {self.inside: self.port, 15672: self._api_port}

    def url(self, vhost: str = "/") -> str:
        """The AMQP address of a virtual host."""
        return amqp_url(self.port, vhost)

    def change_vhosts(self, add: Sequence[str], drop: Sequence[str]) -> None:
        """Adds and drops virtual hosts."""
        ManagedBroker(self.url(), f"http://127.0.0.1:{self._api_port}").change_vhosts(add, drop)

    def eval(self, expression: str) -> str:
        """Evaluates an Erlang expression (without the final dot) in the node."""
        return self.ctl("eval", expression + ".")

    def ctl(self, *arguments: str) -> str:
        """Runs `rabbitmqctl` in the container."""
        code, output = self._container.exec_run(["rabbitmqctl", "-q", *arguments])
        assert code == 0, output.decode(errors="replace")
        return str(output.decode().strip())

    def answers(self) -> bool:
        return speaks_amqp(self.port)


class PostgresContainer(ContainerServer):
    """PostgreSQL with a password."""

    kind = "postgres"
    image = "postgres:16"
    inside = 5432
    settings = {"POSTGRES_USER": "orchestrix", "POSTGRES_PASSWORD": _SECRET, "POSTGRES_DB": "postgres"}  # noqa: RUF012

    def url(self, database: str = "postgres") -> str:
        """The address of a database for SQLAlchemy with asyncpg."""
        return f"postgresql+asyncpg://orchestrix:{_SECRET}@127.0.0.1:{self.port}/{database}"

    def answers(self) -> bool:
        return answers_sql(self.url())


class MariaContainer(ContainerServer):
    """MariaDB; its root may make databases."""

    kind = "mariadb"
    image = "mariadb:10.11"
    inside = 3306
    settings = {"MARIADB_ROOT_PASSWORD": _SECRET}  # noqa: RUF012

    def url(self, database: str = "mysql") -> str:
        """The address of a database for SQLAlchemy with asyncmy."""
        return f"mysql+asyncmy://root:{_SECRET}@127.0.0.1:{self.port}/{database}"

    def answers(self) -> bool:
        return answers_sql(self.url())


CONTAINERS: Mapping[str, Callable[[Run], Server]] = {
    "rabbitmq-server": RabbitContainer,
    "postgresql": PostgresContainer,
    "mariadb-server": MariaContainer,
}
