"""Publishing: makes the frames of a basic.publish a queued message, a return, a confirm or an error."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrix.broker.embedded import errors, frames
from orchestrix.broker.embedded.model import properties
from orchestrix.broker.embedded.model.message import Message

if TYPE_CHECKING:
    from orchestrix.broker.embedded.model.ports import ConnectionPort

NO_ROUTE = 312
REROUTING_HEADERS = ("CC", "BCC")


@dataclass(slots=True)
class PartialMessage:
    """A message of which not all frames are here yet. `left` in bytes, `None` before the content header."""

    exchange: str
    routing_key: str
    mandatory: bool
    left: int | None = None
    properties: bytes = b""
    pieces: list[bytes] = field(default_factory=list)


class Publishing:
    """The publishing half of one channel."""

    def __init__(self, channel: int, link: ConnectionPort) -> None:
        self._channel = channel
        self._link = link
        self._partial: PartialMessage | None = None
        self._confirming = False
        self._last_taken = 0
        self._last_confirmed = 0
        self._confirm_due = False

    @property
    def expects_content(self) -> bool:
        return self._partial is not None

    def confirm(self) -> None:
        self._confirming = True

    def forget(self) -> None:
        """The channel ends in the middle of a message."""
        self._partial = None

    def begin(self, exchange: str, routing_key: str, mandatory: bool, immediate: bool) -> None:
        if immediate:
            raise errors.not_implemented("immediate=true")
        self._partial = PartialMessage(exchange, routing_key, mandatory)

    def on_header(self, payload: bytes) -> None:
        """Raises AmqpError 406 for a message that is too large, before any of its body is kept."""
        draft = self._partial
        if draft is None or draft.left is not None:
            raise errors.unexpected_frame("a content header came where a method frame was expected")
        draft.left, draft.properties = frames.read_content_header(payload)
        limit = self._link.profile.max_message_size
        if draft.left > limit:
            raise errors.precondition_failed(f"message size {draft.left} is larger than configured max size {limit}")
        self._finish_if_whole(draft)

    def on_body(self, payload: bytes) -> None:
        draft = self._partial
        if draft is None or draft.left is None:
            raise errors.unexpected_frame("a content body came where another frame was expected")
        if len(payload) > draft.left:
            raise errors.unexpected_frame("the content bodies are longer than the content header says")
        draft.pieces.append(payload)
        draft.left -= len(payload)
        self._finish_if_whole(draft)

    def _finish_if_whole(self, draft: PartialMessage) -> None:
        if draft.left == 0:
            self._partial = None
            self._publish(draft)

    def _publish(self, draft: PartialMessage) -> None:
        vhost = self._link.vhost
        if draft.exchange and vhost.exchange(draft.exchange).settings.internal:
            raise errors.access_refused(
                f"cannot publish to internal exchange '{draft.exchange}' in vhost '{vhost.name}'"
            )
        message = self._message(draft)
        queues = vhost.route(draft.exchange, draft.routing_key)
        for queue in queues:
            queue.publish(message)
        if draft.mandatory and not queues:
            self._return(message)
        if self._confirming:
            self._confirm_later()

    def _message(self, draft: PartialMessage) -> Message:
        found = properties.parse(draft.properties)
        if "user_id" in found and (user := properties.text(found["user_id"])) != self._link.user:
            raise errors.precondition_failed(
                f"user_id property set to '{user}' but authenticated user was '{self._link.user}'"
            )
        if "headers" in found:
            _check_headers(found["headers"])
        expiration = _expiration(found["expiration"]) if "expiration" in found else None
        body = b"".join(draft.pieces)
        return Message(draft.exchange, draft.routing_key, draft.properties, body, expiration=expiration)

    def _return(self, message: Message) -> None:
        method = frames.returned(NO_ROUTE, "NO_ROUTE", message.address)
        frame_max = self._link.frame_max
        self._link.send(frames.content(self._channel, method, message.header, message.body, frame_max))

    def _confirm_later(self) -> None:
        """One ack for all that was taken since the last flush."""
        self._last_taken += 1
        if not self._confirm_due:
            self._confirm_due = True
            self._link.before_flush(self._send_confirm)

    def _send_confirm(self) -> None:
        self._confirm_due = False
        several = self._last_taken - self._last_confirmed > 1
        self._last_confirmed = self._last_taken
        self._link.send(frames.ack(self._channel, self._last_taken, several))


def _check_headers(encoded: bytes) -> None:
    for name in properties.headers(encoded):
        if name in REROUTING_HEADERS:
            raise errors.not_implemented(f"the embedded broker does not route by the header '{name}'")


def _expiration(encoded: bytes) -> int:
    text = properties.text(encoded)
    if not (text.isascii() and text.isdigit()):
        raise errors.precondition_failed(f"invalid expiration '{text}': a number of milliseconds is expected")
    return int(text)
