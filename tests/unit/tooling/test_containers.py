"""Where only Docker is at hand, is a server in a container started, stopped and frozen like a private one?"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers import containers, lookup
from tests.servers.containers import PostgresContainer, RabbitContainer, docker_answers
from tests.servers.lookup import RABBITMQ
from tests.servers.run import Run


class Container:
    """Stands in for testcontainers' container and for the engine's: notes how it was made and what was done to it."""

    made: Container

    def __init__(self, image: str) -> None:
        self.image = image
        self.environment: dict[str, str] = {}
        self.ports: dict[int, int] = {}
        self.done: list[str] = []
        self.status = "created"
        Container.made = self

    def with_env(self, name: str, value: str) -> Container:
        self.environment[name] = value
        return self

    def with_bind_ports(self, inside: int, outside: int) -> Container:
        self.ports[inside] = outside
        return self

    def get_wrapped_container(self) -> Container:
        return self

    def start(self) -> Container:
        return self._become("start", "running")

    def stop(self, timeout: int) -> None:
        self._become("stop", "exited")

    def kill(self, signal: str) -> None:
        self._become("kill", "exited")

    def pause(self) -> None:
        self._become("pause", "paused")

    def unpause(self) -> None:
        self._become("unpause", "running")

    def remove(self, *, force: bool, v: bool) -> None:
        self._become("remove", "gone")

    def reload(self) -> None:
        """The status is always fresh."""

    def _become(self, verb: str, status: str) -> Container:
        self.done.append(verb)
        self.status = status
        return self


@pytest.fixture(autouse=True)
def _no_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("testcontainers.core.container.DockerContainer", Container)
    monkeypatch.setattr(RabbitContainer, "answers", lambda _: True)
    monkeypatch.setattr(PostgresContainer, "answers", lambda _: True)
    docker_answers.cache_clear()
    yield
    docker_answers.cache_clear()


def test_the_verbs_reach_the_container_and_the_port_stays(server_run: Run) -> None:
    server = RabbitContainer(server_run)
    server.start()
    container = Container.made
    assert container.ports[5672] == server.port
    for act in (server.stop, server.start, server.pause, server.resume, server.kill9, server.start, server.restart):
        act()
    server.discard()
    assert container is Container.made
    expected = "start stop start pause unpause kill start stop start remove"
    assert container.done == expected.split()
    assert f":{server.port}/" in server.url()


def test_the_login_of_the_address_is_the_containers(server_run: Run) -> None:
    server = PostgresContainer(server_run)
    server.start()
    made = Container.made.environment
    assert f"{made['POSTGRES_USER']}:{made['POSTGRES_PASSWORD']}@127.0.0.1:{server.port}/" in server.url()


def test_without_binaries_a_private_server_is_a_container(server_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "docker_answers", lambda: True)
    kind = lookup.Kind(RABBITMQ.name, RABBITMQ.variable, RABBITMQ.package, lambda: None, lambda _: None)
    assert isinstance(lookup.private_server(kind, server_run), containers.RabbitContainer)


def test_an_engine_that_is_not_there_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    assert not docker_answers()
