"""AMQP errors: reply codes for a client, and whether each closes its channel or its connection."""

from __future__ import annotations

NAMES = {
    320: "CONNECTION_FORCED",
    403: "ACCESS_REFUSED",
    404: "NOT_FOUND",
    405: "RESOURCE_LOCKED",
    406: "PRECONDITION_FAILED",
    501: "FRAME_ERROR",
    502: "SYNTAX_ERROR",
    503: "COMMAND_INVALID",
    504: "CHANNEL_ERROR",
    505: "UNEXPECTED_FRAME",
    530: "NOT_ALLOWED",
    540: "NOT_IMPLEMENTED",
    541: "INTERNAL_ERROR",
}
CHANNEL_CODES = frozenset({403, 404, 405, 406})
REPLY_TEXT_MAX_BYTES = 255


class AmqpError(Exception):
    """The client asked for something that it cannot have. Codes as in AMQP 0-9-1, 1.2 (reply codes)."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence

    @property
    def ends_connection(self) -> bool:
        return self.code not in CHANNEL_CODES

    @property
    def reply_text(self) -> str:
        """At most 255 bytes of UTF-8, because it travels as a short string."""
        text = f"{NAMES[self.code]} - {self.sentence}"
        return text.encode()[:REPLY_TEXT_MAX_BYTES].decode(errors="ignore")


def access_refused(sentence: str) -> AmqpError:
    return AmqpError(403, sentence)


def not_found(kind: str, name: str, vhost: str) -> AmqpError:
    return AmqpError(404, f"no {kind} '{name}' in vhost '{vhost}'")


def locked(name: str, vhost: str) -> AmqpError:
    return AmqpError(
        405,
        f"cannot obtain exclusive access to locked queue '{name}' in vhost '{vhost}': it belongs to another connection",
    )


def precondition_failed(sentence: str) -> AmqpError:
    return AmqpError(406, sentence)


def inequivalent(arg: str, kind: str, name: str, vhost: str, received: object, current: object) -> AmqpError:
    where = f"inequivalent arg '{arg}' for {kind} '{name}' in vhost '{vhost}'"
    return precondition_failed(f"{where}: received {_shown(received)} but current is {_shown(current)}")


def _shown(value: object) -> str:
    if value is None:
        return "none"
    return f"'{str(value).lower()}'" if isinstance(value, bool) else f"'{value}'"


def unknown_delivery_tag(tag: int) -> AmqpError:
    return precondition_failed(f"unknown delivery tag {tag}")


def frame_error(sentence: str) -> AmqpError:
    return AmqpError(501, sentence)


def syntax_error(sentence: str) -> AmqpError:
    return AmqpError(502, sentence)


def command_invalid(sentence: str) -> AmqpError:
    return AmqpError(503, sentence)


def channel_error(sentence: str) -> AmqpError:
    return AmqpError(504, sentence)


def unexpected_frame(sentence: str) -> AmqpError:
    return AmqpError(505, sentence)


def not_allowed(sentence: str) -> AmqpError:
    return AmqpError(530, sentence)


def not_implemented(sentence: str) -> AmqpError:
    return AmqpError(540, sentence)


def internal_error(sentence: str) -> AmqpError:
    return AmqpError(541, sentence)
