"""Does the wire format say what AMQP 0-9-1 asks, and does nothing that a peer sends break its reading?"""

from __future__ import annotations

import struct
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, frame
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

from orchestrix.broker.amqp import codec, field_tables
from orchestrix.broker.port import Outgoing
from orchestrix.errors import Invalid

FRAME_MAX = 4096
MESSAGE = Outgoing("work", "jobs", b"{}", "id-1", "corr", "cmd.x", datetime(2026, 1, 2, tzinfo=UTC), {"a": "b"})
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def unmarshal(data: bytes) -> list[object]:
    """The frames as the public codec reads them."""
    found: list[object] = []
    while data:
        size, channel, one = frame.unmarshal(data)
        assert channel == 7
        found.append(one)
        data = data[size:]
    return found


@given(st.dictionaries(text, text | st.booleans() | st.integers(-(2**63), 2**63 - 1), max_size=5), text, text, text)
def test_a_published_message_is_read_by_the_public_codec(
    headers: dict[str, str | int], correlation_id: str, kind: str, reply_to: str
) -> None:
    sent = replace(MESSAGE, headers=headers, correlation_id=correlation_id, type=kind, reply_to=reply_to)
    method, header, body = unmarshal(codec.publish(sent, 7, FRAME_MAX * 100))
    assert isinstance(method, commands.Basic.Publish)
    assert (method.exchange, method.routing_key, method.mandatory, method.immediate) == ("work", "jobs", True, False)
    assert isinstance(header, ContentHeader)
    found = header.properties
    assert (found.content_type, found.delivery_mode, found.message_id) == ("application/json", 2, "id-1")
    assert (found.correlation_id or "", found.message_type or "") == (correlation_id, kind)
    assert found.reply_to == (reply_to or None)
    assert (found.timestamp, found.headers) == (MESSAGE.timestamp, headers)
    assert isinstance(body, ContentBody)
    assert body.value == b"{}"


@pytest.mark.parametrize("size", [0, 1, FRAME_MAX - 8, FRAME_MAX - 7, 3 * FRAME_MAX])
def test_a_body_is_cut_into_frames_of_the_agreed_size(size: int) -> None:
    data = codec.publish(replace(MESSAGE, body=b"x" * size), 7, FRAME_MAX)
    bodies = [one.value for one in unmarshal(data) if isinstance(one, ContentBody)]
    assert b"".join(bodies) == b"x" * size
    assert all(len(one) + 8 <= FRAME_MAX for one in bodies)


@pytest.mark.parametrize(
    "bad",
    [
        replace(MESSAGE, headers={"x": "y" * FRAME_MAX}),
        replace(MESSAGE, headers={"x": 1.5}),  # type: ignore[dict-item]
        replace(MESSAGE, headers={"x": b"bytes"}),  # type: ignore[dict-item]
        replace(MESSAGE, headers={"x": -(2**63) - 1}),
        replace(MESSAGE, headers={"\udfff": 1}),
        replace(MESSAGE, correlation_id="é" * 128),
        replace(MESSAGE, type="\ud800"),
        replace(MESSAGE, routing_key=None),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_written_is_invalid(bad: Outgoing) -> None:
    with pytest.raises(Invalid):
        codec.publish(bad, 7, FRAME_MAX)


@given(st.binary(max_size=300), st.integers(0, 0xFFFF))
def test_no_garbage_in_a_content_header_raises(garbage: bytes, flags: int) -> None:
    found = codec.read_properties(struct.pack(">HHQH", 60, 0, 0, flags) + garbage)
    assert isinstance(found.headers, dict)


@given(st.binary(max_size=300))
def test_no_garbage_in_a_table_raises_or_runs_past_its_end(garbage: bytes) -> None:
    found, end = field_tables.read_headers(struct.pack(">I", len(garbage)) + garbage + b"\x02ok", 0)
    assert isinstance(found, dict)
    assert end == 4 + len(garbage)


@given(
    st.recursive(
        text | st.booleans() | st.integers(-(2**31), 2**31 - 1) | st.none(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
        max_leaves=10,
    )
)
def test_a_table_of_the_public_codec_is_read(value: object) -> None:
    properties = commands.Basic.Properties(headers={"x": value}, message_id="m", message_type="t")  # type: ignore[dict-item]
    data = ContentHeader(0, 12, properties).marshal()
    found = codec.read_properties(data)
    assert (found.headers, found.message_id, found.type) == ({"x": value}, "m", "t")
    assert codec.read_body_size(data) == 12


def test_deep_nesting_is_cut_off_and_the_rest_is_read() -> None:
    content = b""
    for _ in range(20_000):
        content = b"\x01nF" + struct.pack(">I", len(content)) + content
    content += b"\x05afterV"
    found, _ = field_tables.read_headers(struct.pack(">I", len(content)) + content, 0)
    assert set(found) == {"n", "after"}


def test_a_reply_text_cut_within_a_letter_is_read() -> None:
    payload = struct.pack(">IH", codec.CHANNEL_CLOSE, 404) + b"\x03ab\xc3" + b"\x00" * 4
    assert codec.read_close(payload) == (404, "ab\ufffd")


@given(st.integers(1, 2**64 - 1), st.booleans())
def test_acks_are_read_by_the_public_codec(tag: int, multiple: bool) -> None:
    (ack,) = unmarshal(codec.settle(codec.ACK, 7, tag, int(multiple)))
    (nack,) = unmarshal(codec.settle(codec.NACK, 7, tag, 2 | int(multiple)))
    assert isinstance(ack, commands.Basic.Ack)
    assert isinstance(nack, commands.Basic.Nack)
    assert (ack.delivery_tag % 2**64, ack.multiple) == (tag, multiple)
    assert (nack.delivery_tag % 2**64, nack.multiple, nack.requeue) == (tag, multiple, True)
    assert codec.read_confirm(ack.index.to_bytes(4, "big") + struct.pack(">QB", tag, multiple)) == (tag, multiple)
