"""What does a function's own error say of its attempt?"""

from __future__ import annotations

import pytest

from workers.sdk.errors import Transient
from workers.sdk.jobs.endings import raised


class Timeout(Exception):
    """As libraries name theirs."""


@pytest.mark.parametrize("error", [Timeout("the lock is taken"), Transient("Timeout", "the lock is taken")])
def test_an_error_that_is_called_like_a_word_of_the_worker_is_not_that(error: Exception) -> None:
    told = raised(error).error
    assert told is not None
    assert (told.type, told.message, told.retryable) == ("HandlerTimeout", "the lock is taken", True)


def test_another_error_keeps_its_name() -> None:
    told = raised(Transient("Busy", "later", retry_after=2)).error
    assert told is not None
    assert (told.type, told.retry_after_ms) == ("Busy", 2000)
