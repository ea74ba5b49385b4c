"""Idempotency keys: the answer that was given to the request with each key."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import delete, or_, select, tuple_, update

from orchestrix.domain.idempotency import StoredAnswer

from .engine import Connection, Transaction
from .tables import idempotency_keys

__all__ = ["StoredAnswer", "claim", "complete", "find", "insert", "purge"]


async def find(connection: Connection, scope: str, key: str) -> StoredAnswer | None:
    """The answer stored for a key."""
    table = idempotency_keys.c
    query = select(table.fingerprint, table.status, table.headers, table.body)
    row = (await connection.execute(query.where(table.scope == scope, table.key == key))).first()
    return StoredAnswer(*row) if row else None


async def insert(tx: Transaction, scope: str, key: str, answer: StoredAnswer) -> bool:
    """Stores an answer; False if the key has one.

    Waits while another open transaction has the same key; raises `Contention` if that takes over 2 seconds.
    """
    row = {
        "scope": scope,
        "key": key,
        "fingerprint": answer.fingerprint,
        "status": answer.status,
        "headers": dict(answer.headers),
        "body": answer.body,
        "created_at": tx.now(),
    }
    return await tx.dialect.insert_one(tx, idempotency_keys, row)


async def claim(tx: Transaction, scope: str, key: str, fingerprint: str) -> bool:
    """Reserves the key for the answer that `complete` stores later in `tx`; False if it is taken.

    Waits, and raises `Contention`, as `insert` does.
    """
    return await insert(tx, scope, key, StoredAnswer(fingerprint, 0, {}, b""))


async def complete(tx: Transaction, scope: str, key: str, answer: StoredAnswer) -> None:
    """Stores the answer to a key that `tx` has claimed."""
    table = idempotency_keys.c
    values = {"status": answer.status, "headers": dict(answer.headers), "body": answer.body}
    await tx.execute(update(idempotency_keys).where(table.scope == scope, table.key == key).values(values))


async def purge(tx: Transaction, older_than_s: float = 86400, limit: int = 1000) -> int:
    """Removes up to `limit` answers that are older than `older_than_s` seconds; how many it were.

    Also those that are as far in the future: the clock was set back since, and they would never be old.
    """
    table = idempotency_keys.c
    now, kept = tx.now(), timedelta(seconds=older_than_s)
    old = or_(table.created_at < now - kept, table.created_at > now + kept)
    query = select(table.scope, table.key).where(old).order_by(table.created_at).limit(limit)
    keys = [tuple(row) for row in await tx.execute(query.with_for_update(skip_locked=True))]
    if keys:
        await tx.execute(delete(idempotency_keys).where(tuple_(table.scope, table.key).in_(keys)))
    return len(keys)
