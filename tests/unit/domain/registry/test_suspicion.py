"""Which node asks an executor that is silent, for whom does a suspicion count, and when does it end?"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from orchestrix.domain.registry.suspicion import Suspicion, is_suspect, probes, suspected_by

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
ONE = ("shop", "http://10.0.0.1:9999")
NODES = ("ada", "bob", "cyd", "dan")


def asking(
    executor: tuple[str, str] = ONE, owners: tuple[str, ...] = (), suspecting: tuple[str, ...] = ()
) -> list[str]:
    """The nodes that ask."""
    return [one for one in NODES if probes(one, executor, owners=owners, coordinators=NODES, suspecting=suspecting)]


def test_one_node_asks_whom_nobody_has_work_at_and_they_share_them() -> None:
    picked = [asking(("shop", f"http://10.0.0.{place}:9999")) for place in range(200)]
    assert {len(one) for one in picked} == {1}
    assert all(sum(one == [node] for one in picked) > 20 for node in NODES)


def test_the_pick_is_the_same_whichever_node_makes_it_and_moves_only_what_a_node_had() -> None:
    left = [one for one in NODES if one != "bob"]
    for place in range(50):
        executor = ("shop", f"http://10.0.0.{place}:9999")
        [before] = asking(executor)
        after = [one for one in left if probes(one, executor, owners=(), coordinators=left, suspecting=())]
        assert after == [before] if before != "bob" else len(after) == 1


def test_who_owns_its_work_asks_and_nobody_else() -> None:
    assert asking(owners=("bob",)) == ["bob"]
    assert asking(owners=("bob", "dan")) == ["bob", "dan"]


def test_who_suspects_it_goes_on_and_one_more_confirms() -> None:
    for owners in ((), ("ada",)):
        found = asking(owners=owners, suspecting=("ada",))
        assert "ada" in found
        assert len(found) == 2
    both = asking(suspecting=("ada", "cyd"))
    assert both == ["ada", "cyd"]


def test_a_lone_node_has_nobody_to_confirm() -> None:
    alone = {"owners": (), "coordinators": ("ada",)}
    assert probes("ada", ONE, **alone, suspecting=())
    assert probes("ada", ONE, **alone, suspecting=("ada",))
    assert not probes("bob", ONE, owners=(), coordinators=(), suspecting=())


@pytest.mark.parametrize(
    ("nodes", "node", "suspect"),
    [
        ((), "ada", False),
        (("ada",), "ada", True),
        (("ada",), "bob", False),
        (("ada",), None, False),
        (("ada", "bob"), "cyd", True),
        (("ada", "bob"), None, True),
    ],
)
def test_a_suspicion_is_its_nodes_own_until_a_second_one_confirms_it(
    nodes: tuple[str, ...], node: str | None, suspect: bool
) -> None:
    assert is_suspect(nodes, node) is suspect


def test_a_suspicion_ends_by_a_sign_of_life_after_the_probe_began() -> None:
    one = Suspicion(*ONE, "ada", NOON, NOON + 10 * SECOND)
    assert not one.has_ended(None, NOON - SECOND, NOON)
    assert one.has_ended(None, NOON + SECOND)


def test_only_what_is_repeated_counts_and_what_no_heartbeat_has_ended() -> None:
    found = [
        Suspicion(*ONE, "ada", NOON, NOON + 30 * SECOND),
        Suspicion(*ONE, "bob", NOON, NOON),
        Suspicion("shop", "http://10.0.0.2:9999", "cyd", NOON, NOON + 30 * SECOND),
        Suspicion("billing", ONE[1], "cyd", NOON, NOON + 30 * SECOND),
    ]
    assert suspected_by(found, ONE, after=NOON, last_seen=None) == {"ada": NOON}
    assert suspected_by(found, ONE, after=NOON - SECOND, last_seen=NOON) == {"ada": NOON, "bob": NOON}
    assert suspected_by(found, ONE, after=NOON, last_seen=NOON + SECOND) == {}
