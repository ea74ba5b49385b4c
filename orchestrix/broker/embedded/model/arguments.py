"""Arguments: which queue and exchange arguments the embedded broker knows, and which it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrix.broker.embedded import errors
from orchestrix.broker.embedded.model.exchanges import TYPES, ExchangeSettings
from orchestrix.broker.embedded.model.profile import Profile

UNDERSTOOD: Mapping[str, type] = {
    "x-queue-type": str,
    "x-dead-letter-exchange": str,
    "x-dead-letter-routing-key": str,
    "x-single-active-consumer": bool,
    "x-delivery-limit": int,
    "x-max-length": int,
    "x-message-ttl": int,
}
KINDS = ("classic", "quorum")


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """What a declaration says; a second one must say the same. `ttl` in milliseconds."""

    durable: bool
    exclusive: bool
    auto_delete: bool
    arguments: tuple[tuple[str, Any], ...]
    quorum: bool
    dead_letter_exchange: str | None
    dead_letter_key: str | None
    single_active: bool
    delivery_limit: int | None
    max_length: int | None
    ttl: int | None

    def first_difference(self, asked: QueueSettings) -> tuple[str, object, object] | None:
        """(argument, asked for, current) of the first thing that is not the same, or None."""
        for name in ("durable", "auto_delete"):
            mine, theirs = getattr(self, name), getattr(asked, name)
            if mine != theirs:
                return name, theirs, mine
        mine_by_name, theirs_by_name = dict(self.arguments), dict(asked.arguments)
        for name in sorted(mine_by_name.keys() | theirs_by_name.keys()):
            if mine_by_name.get(name) != theirs_by_name.get(name):
                return name, theirs_by_name.get(name), mine_by_name.get(name)
        return None


def queue_settings(
    name: str, durable: bool, exclusive: bool, auto_delete: bool, arguments: Mapping[str, Any], profile: Profile
) -> QueueSettings:
    """Checked settings. Raises AmqpError 406 (wrong value) or 540 (not offered)."""
    for arg, value in arguments.items():
        _check_argument(name, arg, value)
    if "x-dead-letter-routing-key" in arguments and "x-dead-letter-exchange" not in arguments:
        raise _invalid(name, "x-dead-letter-routing-key", "there is no x-dead-letter-exchange")
    quorum = arguments.get("x-queue-type", "classic") == "quorum"
    _check_quorum(name, durable, exclusive, auto_delete, quorum)
    if "x-delivery-limit" in arguments and not quorum:
        raise _invalid(name, "x-delivery-limit", "only a quorum queue counts deliveries")
    return QueueSettings(
        durable=durable,
        exclusive=exclusive,
        auto_delete=auto_delete,
        arguments=tuple(sorted({"x-queue-type": "classic", **arguments}.items())),
        quorum=quorum,
        dead_letter_exchange=arguments.get("x-dead-letter-exchange"),
        dead_letter_key=arguments.get("x-dead-letter-routing-key"),
        single_active=bool(arguments.get("x-single-active-consumer", False)),
        delivery_limit=_delivery_limit(quorum, arguments, profile),
        max_length=arguments.get("x-max-length"),
        ttl=arguments.get("x-message-ttl"),
    )


def _check_argument(queue: str, arg: str, value: object) -> None:
    if arg not in UNDERSTOOD:
        raise errors.not_implemented(
            f"the embedded broker does not know the queue argument '{arg}' of queue '{queue}'; "
            f"it knows {', '.join(UNDERSTOOD)}"
        )
    kind = UNDERSTOOD[arg]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise _invalid(queue, arg, f"{value!r} is not of type {kind.__name__}")
    if arg == "x-queue-type" and value not in KINDS:
        raise _invalid(queue, arg, f"'{value}' is not one of {', '.join(KINDS)}")
    if isinstance(value, int) and value < 0 and not (arg == "x-delivery-limit" and value == -1):
        raise _invalid(queue, arg, f"{value} is negative")


def _check_quorum(name: str, durable: bool, exclusive: bool, auto_delete: bool, quorum: bool) -> None:
    wrong = [("non-durable", not durable), ("exclusive-owner", exclusive), ("auto-delete", auto_delete)]
    for flag, is_set in wrong:
        if quorum and is_set:
            raise errors.precondition_failed(f"invalid property '{flag}' for quorum queue '{name}'")


def refuse_transient(name: str, settings: QueueSettings, profile: Profile) -> None:
    """RabbitMQ 4.3 makes no new queue that is neither durable nor exclusive. Raises AmqpError 541."""
    if not (settings.durable or settings.exclusive or profile.transient_shared_queues):
        raise errors.internal_error(
            f"queue '{name}' is neither durable nor exclusive: transient_nonexcl_queues is deprecated and denied"
        )


def _delivery_limit(quorum: bool, arguments: Mapping[str, Any], profile: Profile) -> int | None:
    if not quorum:
        return None
    limit: int | None = arguments.get("x-delivery-limit", profile.delivery_limit)
    return None if limit == -1 and profile.unlimited_by_minus_one else limit


def _invalid(queue: str, arg: str, reason: str) -> errors.AmqpError:
    return errors.precondition_failed(f"invalid arg '{arg}' for queue '{queue}': {reason}")


def exchange_settings(
    name: str, kind: str, durable: bool, auto_delete: bool, internal: bool, arguments: Mapping[str, Any]
) -> ExchangeSettings:
    """Checked settings. Raises AmqpError 406, 503 or 540."""
    if kind not in TYPES:
        raise errors.command_invalid(f"unknown exchange type '{kind}'; the embedded broker has {', '.join(TYPES)}")
    unknown = sorted(arguments.keys() - {"alternate-exchange"})
    if unknown:
        raise errors.not_implemented(f"the embedded broker does not know the exchange argument '{unknown[0]}'")
    alternate = arguments.get("alternate-exchange")
    if alternate is not None and not isinstance(alternate, str):
        raise errors.precondition_failed(f"invalid arg 'alternate-exchange' for exchange '{name}': not a string")
    return ExchangeSettings(kind, durable, auto_delete, internal, alternate)
