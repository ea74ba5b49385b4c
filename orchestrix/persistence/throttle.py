"""Throttle: limits what all nodes together do in a second."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final, NamedTuple

from sqlalchemy import select, update

from .dialects import BulkInsert
from .engine import Transaction
from .tables import throttles

_MICRO: Final = 1_000_000
_INSERT: Final = BulkInsert(throttles, ("name", "tokens_micro", "at"), key=("name",))
_PUT_BACK: Final = timedelta(seconds=10)
"""A clock that is further behind than any wait for a lock was set back."""


class _Bucket(NamedTuple):
    tokens_micro: int
    at: datetime
    now: datetime


async def take(tx: Transaction, name: str, count: int, per_second: float) -> int:
    """How many of `count` may be done now: `per_second` on the average, at most one second's worth at once.

    By the database's clock. Others who ask for the same name wait for the end of this transaction, so it should be
    short; what it took is given back if it does not commit. Raises `Contention`.
    """
    if count <= 0 or per_second <= 0:
        return 0
    full = int(max(per_second, 1.0) * _MICRO)
    bucket = await _locked(tx, name) or await _made(tx, name, full)
    tokens, at = _filled(bucket, per_second, full)
    granted = min(count, tokens // _MICRO)
    values = {"tokens_micro": tokens - granted * _MICRO, "at": at}
    await tx.execute(update(throttles).where(throttles.c.name == name).values(values))
    return granted


def _filled(bucket: _Bucket, per_second: float, full: int) -> tuple[int, datetime]:
    """Its tokens now, and since when. Who waited for the lock read the clock before the one who held it."""
    passed = bucket.now - bucket.at
    if timedelta(0) > passed > -_PUT_BACK:
        return min(bucket.tokens_micro, full), bucket.at
    added = int(max(passed / timedelta(microseconds=1), 0) * per_second)
    return min(bucket.tokens_micro + added, full), bucket.now


async def _locked(tx: Transaction, name: str) -> _Bucket | None:
    query = select(throttles.c.tokens_micro, throttles.c.at, tx.dialect.clock(tx.now()))
    found = (await tx.execute(query.where(throttles.c.name == name).with_for_update())).first()
    return _Bucket(*found) if found else None


async def _made(tx: Transaction, name: str, full: int) -> _Bucket:
    """A full bucket, unless another transaction has just made it."""
    await tx.dialect.insert_absent(tx, _INSERT, [(name, full, tx.now())])
    found = await _locked(tx, name)
    assert found is not None, "a throttle is never deleted"
    return found
