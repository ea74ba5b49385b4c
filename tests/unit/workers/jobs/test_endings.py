"""What does a function's own error say of its attempt?"""

from __future__ import annotations

import pytest

from orchestrix.worker.errors import Transient
from orchestrix.worker.jobs.outcome import raised


class Timeout(Exception):
    """As libraries name theirs."""


def test_a_library_s_error_that_is_called_like_a_word_of_the_worker_is_not_that() -> None:
    told = raised(Timeout("the lock is taken")).error
    assert told is not None
    assert (told.type, told.message, told.retryable) == ("HandlerTimeout", "the lock is taken", True)


@pytest.mark.parametrize("type", ["Busy", "Timeout"])
def test_what_an_author_says_is_kept(type: str) -> None:
    told = raised(Transient(type, "later", retry_after=2)).error
    assert told is not None
    assert (told.type, told.retry_after_ms) == (type, 2000)
