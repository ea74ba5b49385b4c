"""Is a key answered again only to the very request that it came with first?"""

from __future__ import annotations

from orchestrix.domain.idempotency import Keyed, KeyReused, Replayed, StoredAnswer

ANSWER = StoredAnswer("f-1", 201, {"Location": "/apps/1"}, b"{}")


def keyed(fingerprint: str) -> Keyed[int]:
    """A key whose request has that fingerprint."""
    return Keyed("scope", "key", fingerprint, lambda done: ANSWER)


def test_the_same_request_gets_the_stored_answer() -> None:
    assert keyed("f-1").before(ANSWER) == Replayed(ANSWER)


def test_another_request_with_the_key_is_told_so() -> None:
    assert keyed("f-2").before(ANSWER) == KeyReused()


def test_a_new_key_has_no_answer_yet() -> None:
    assert keyed("f-1").before(None) is None
