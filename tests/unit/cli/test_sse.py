"""Is a stream of events read as its standard says?"""

from __future__ import annotations

import io

import pytest

from orchestrix.cli.sse import MAX_LINE_BYTES, ServerSentEvent, events


def read(text: bytes) -> list[ServerSentEvent]:
    return list(events(io.BytesIO(text)))


def test_events_with_ids_and_names() -> None:
    assert read(b"event: state\nid: 3\ndata: {}\n\nid: 4\ndata: x\n\n") == [
        ServerSentEvent("3", "state", "{}"),
        ServerSentEvent("4", "message", "x"),
    ]


def test_comments_retries_and_empty_blocks_are_no_events() -> None:
    assert read(b": hello\n\nretry: 1000\n\n\n\nid: 9\n\ndata: a\n\n") == [ServerSentEvent("9", "message", "a")]


def test_several_data_lines_are_one_text() -> None:
    assert read(b"data: a\ndata:b\ndata\n\n") == [ServerSentEvent("", "message", "a\nb\n")]


def test_windows_line_ends_a_mark_in_front_and_bad_bytes() -> None:
    assert read(b"\xef\xbb\xbfdata: a\r\n\r\ndata: \xff\n\n") == [
        ServerSentEvent("", "message", "a"),
        ServerSentEvent("", "message", "\ufffd"),
    ]


@pytest.mark.parametrize("rest", [b"data: a", b"data: a\n", b"id: 3\nda"])
def test_what_was_cut_off_does_not_count(rest: bytes) -> None:
    assert read(b"data: 1\n\n" + rest) == [ServerSentEvent("", "message", "1")]


def test_a_line_without_end_is_refused() -> None:
    with pytest.raises(OSError, match="without end"):
        read(b"data: " + b"x" * MAX_LINE_BYTES)
