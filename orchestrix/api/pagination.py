"""Pagination: where the next page begins."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeGuard, TypeVar
from urllib.parse import parse_qsl, quote, urlencode
from uuid import UUID
from zlib import crc32

from starlette.requests import Request

from orchestrix.api.problems import Problem, bad_parameter
from orchestrix.saga.messages import MAX_ID, dump, storable

LONGEST: Final = 4096
NEXT_PAGE: Final = ("cursor", "wait", "sinceVersion")
"""Parameters that are not those of the next page: what was waited for is there."""
T = TypeVar("T", datetime, str, int)


def encode(order: str, value: datetime | str | int, last_id: int) -> str:
    """The place behind the item whose sort value is `value`, in a list ordered by `order`."""
    plain = value.isoformat() if isinstance(value, datetime) else value
    body = dump([order, plain, last_id])
    return _text(crc32(body).to_bytes(4, "big") + body)


def decode(order: str, cursor: str, kind: type[T]) -> tuple[T, int]:
    """The sort value, which is a `kind`, and the id in `cursor`.

    Raises `Problem` 400 if it was not made by `encode` for the same order. The sum in it guards against mistakes, not
    against attacks: a cursor shows no more than the list itself does.
    """
    made_for, plain, last_id = _opened(cursor)
    if made_for != order:
        raise _other()
    if not _whole(last_id):
        raise _unknown()
    return _value(plain, kind), last_id


def encode_row(order: str, at: datetime, id: str) -> str:
    """The place behind the row with that time and that UUID."""
    return encode(order, f"{at.isoformat()} {id}", 0)


def decode_row(order: str, cursor: str | None) -> tuple[datetime, str] | None:
    """The time and the UUID in `cursor`, if there is one. Raises as `decode`."""
    if cursor is None:
        return None
    at, _, last_id = decode(order, cursor, str)[0].partition(" ")
    try:
        return datetime.fromisoformat(at).astimezone(UTC), str(UUID(last_id))
    except (ValueError, OverflowError):
        raise _unknown() from None


def next_link(request: Request, cursor: str | None) -> dict[str, str]:
    """The header `Link` to the next page (RFC 8288), if there is one."""
    if cursor is None:
        return {}
    # Not from `request.url`: that trusts the Host header, which can be wrong.
    query = parse_qsl(request.scope["query_string"].decode("ascii"), keep_blank_values=True)
    kept = [(name, value) for name, value in query if name not in NEXT_PAGE]
    return {"Link": f'<{quote(request.scope["path"])}?{urlencode([*kept, ("cursor", cursor)])}>; rel="next"'}


def which(cursor: str, orders: Sequence[str]) -> int:
    """The place in `orders` of the one for which `cursor` was made. Raises `Problem` 400 if for none of
    them.
    """
    made_for = _opened(cursor)[0]
    if made_for not in orders:
        raise _other()
    return orders.index(made_for)


def _text(raw: bytes) -> str:
    return urlsafe_b64encode(raw).decode().rstrip("=")


def _opened(cursor: str) -> list[Any]:
    try:
        raw = urlsafe_b64decode((cursor[:LONGEST] + "=" * (-len(cursor) % 4)).encode("ascii"))
        whole = _text(raw) == cursor and crc32(raw[4:]).to_bytes(4, "big") == raw[:4]
        parts = json.loads(raw[4:]) if whole else None
    except (ValueError, RecursionError):
        raise _unknown() from None
    if not isinstance(parts, list) or len(parts) != 3:
        raise _unknown()
    return parts


def _value(plain: object, kind: type[T]) -> T:
    try:
        value = datetime.fromisoformat(plain).astimezone(UTC) if kind is datetime and _is_text(plain) else plain
    except (ValueError, OverflowError):
        raise _unknown() from None
    if not isinstance(value, kind) or not (_is_text(value) or isinstance(value, datetime) or _whole(value)):
        raise _unknown()
    return value


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_ID


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and storable(value)


def _other() -> Problem:
    return bad_parameter("cursor", "was made for a list of another order; begin again without it.")


def _unknown() -> Problem:
    return bad_parameter("cursor", "was not given out by this API; begin again without it.")
