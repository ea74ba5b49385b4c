"""Does topic matching agree with its definition, word by word?"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrix.broker.embedded.model.exchanges import topic_matches

words = st.lists(st.sampled_from(["a", "b", ""]), max_size=5)
parts = st.lists(st.sampled_from(["a", "b", "*", "#"]), max_size=5)


def _by_definition(pattern: list[str], key: list[str]) -> bool:
    if not pattern:
        return not key
    if pattern[0] == "#":
        return _by_definition(pattern[1:], key) or (bool(key) and _by_definition(pattern, key[1:]))
    return bool(key) and pattern[0] in ("*", key[0]) and _by_definition(pattern[1:], key[1:])


@given(pattern=parts, key=words)
def test_topics_by_their_definition(pattern: list[str], key: list[str]) -> None:
    text = ".".join(key)
    assert topic_matches(".".join(pattern), text) == _by_definition(pattern, text.split(".") if text else [])


def test_many_hashes_cost_no_more_than_few() -> None:
    assert not topic_matches(".".join(["#", "a"] * 60), ".".join(["a"] * 59 + ["b"]))
