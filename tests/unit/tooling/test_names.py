"""Does every test get a name of its own, made in batches and dropped after use?"""

from __future__ import annotations

from collections.abc import Sequence

from tests.servers.names import Pool


class Server:
    """Remembers what there is."""

    def __init__(self) -> None:
        self.there: set[str] = set()
        self.calls = 0

    def change(self, add: Sequence[str], drop: Sequence[str]) -> None:
        self.calls += 1
        assert not self.there & set(add)
        self.there = self.there - set(drop) | set(add)


def test_a_name_is_there_and_never_given_twice() -> None:
    server = Server()
    pool = Pool(server.change, batch=3)
    taken = [pool.take() for _ in range(7)]
    assert len(set(taken)) == 7
    assert set(taken) <= server.there
    assert server.calls == 3


def test_used_names_go_with_the_next_batch_and_the_rest_at_the_end() -> None:
    server = Server()
    pool = Pool(server.change, batch=1)
    first = pool.take()
    pool.give_back(first)
    assert first in server.there
    second = pool.take()
    assert server.there == {second}
    pool.give_back(second)
    pool.close()
    assert server.there == set()


def test_two_runs_on_one_server_do_not_collide() -> None:
    server = Server()
    assert Pool(server.change, batch=1).take() != Pool(server.change, batch=1).take()
