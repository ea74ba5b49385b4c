"""Is it said in our own words where a text stops being JSON?"""

from __future__ import annotations

import json

import pytest

from orchestrix.saga.messages import UnreadableMessage, explained, load
from orchestrix.saga.validation.json_syntax import stopped

TEXTS = {
    '{"a":}': "line 1, column 6: expected a value",
    "{a: 1}": "line 1, column 2: expected a property name",
    '{"a" 1}': "line 1, column 6: expected a colon",
    '{"a": 1 "b": 2}': "line 1, column 9: expected a comma",
    '{"a": 1} x': "line 1, column 10: unexpected data after the end",
    '{\n"a': "line 2, column 1: unterminated string",
    '{"a": "\t"}': "line 1, column 8: control character in a string",
    '{"a": "\\x"}': "line 1, column 8: invalid escape",
    '{"a": "\\u12"}': "line 1, column 9: invalid escape",
    "\ufeff{}": "line 1, column 1: byte order mark",
}


@pytest.mark.parametrize(("text", "told"), TEXTS.items())
def test_the_place_and_what_must_stand_there(text: str, told: str) -> None:
    with pytest.raises(json.JSONDecodeError) as refused:
        json.loads(text)
    assert explained(refused.value).startswith(told)
    with pytest.raises(UnreadableMessage) as unreadable:
        load(text.encode())
    assert explained(unreadable.value).startswith(told)


def test_other_words_are_left_as_they_are() -> None:
    assert stopped("NaN is not JSON") is None
    with pytest.raises(UnreadableMessage) as refused:
        load(b'{"a": NaN}')
    assert explained(refused.value) == "NaN is not JSON"


def test_words_of_another_python_are_told_by_their_place() -> None:
    assert stopped("Something new: line 3 column 4 (char 9)") == "line 3, column 4: invalid JSON"
