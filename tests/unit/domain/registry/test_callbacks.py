"""Which URLs of nodes does an executor get for its reports?"""

from __future__ import annotations

import pytest

from orchestrix.domain.registry.callbacks import MOST_CALLBACKS, callbacks_for, listening_urls
from orchestrix.worker.executor.run_call import MAX_CALLBACKS

HERE, ELSEWHERE, OTHER = "http://127.0.0.1:8080", "http://10.0.0.1:8080", "http://10.0.0.2:8080"


def test_this_node_comes_first() -> None:
    own, others = {("10.0.0.9", 80)}, {("10.0.0.9", 80), ("10.0.0.2", 80), ("10.0.0.1", 81)}
    found = listening_urls(own, others)
    assert found == ["http://10.0.0.9:80", "http://10.0.0.1:81", "http://10.0.0.2:80"]


def test_what_cannot_be_called_as_it_is_is_left_out() -> None:
    found = listening_urls({("0.0.0.0", 80), ("::", 80), ("fe80::1", 80), ("fd00::1", 80)}, {("127.0.0.1", 80)})
    assert found == ["http://[fd00::1]:80", "http://127.0.0.1:80"]


@pytest.mark.parametrize("address", ["http://127.0.0.1:9999", "http://localhost:9999", "http://[::1]:9999"])
def test_an_executor_on_loopback_reports_by_loopback_first(address: str) -> None:
    assert callbacks_for(address, [ELSEWHERE, HERE, OTHER]) == [HERE, ELSEWHERE, OTHER]


@pytest.mark.parametrize("address", ["http://10.0.0.7:9999", "https://shop.example:9999"])
def test_any_other_executor_gets_no_loopback(address: str) -> None:
    assert callbacks_for(address, [HERE, OTHER, ELSEWHERE]) == [OTHER, ELSEWHERE]


def test_loopback_is_better_than_nothing() -> None:
    assert callbacks_for("http://shop.example:9999", [HERE, "http://localhost:1"]) == [HERE, "http://localhost:1"]


def test_each_comes_once_and_no_more_than_executors_take() -> None:
    many = [f"http://10.0.0.{place}:80" for place in range(100)]
    assert callbacks_for(OTHER, [ELSEWHERE, ELSEWHERE]) == [ELSEWHERE]
    assert callbacks_for(OTHER, many) == many[:MOST_CALLBACKS]
    assert MOST_CALLBACKS <= MAX_CALLBACKS
