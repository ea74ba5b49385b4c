"""Do test processes that run side by side keep out of each other's way?"""

from __future__ import annotations

from tests.servers.ports import free_port, share


def test_neighbours_have_no_port_in_common_and_the_only_one_has_all() -> None:
    alone, first, second = (set(share(worker)) for worker in ("", "gw0", "gw1"))
    assert not first & second
    assert first | second < alone
    assert len(first) == len(second) == 3000


def test_one_that_takes_the_place_of_a_dead_one_has_ports_too() -> None:
    assert set(share("gw7")) <= set(share(""))
    assert not set(share("gw2")) & (set(share("gw0")) | set(share("gw1")))


def test_no_port_is_given_twice() -> None:
    given = [free_port() for _ in range(50)]
    assert len(set(given)) == 50
