"""Idempotency keys: answer a client's repeated request with what the first one with the same key has done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from orchestrix.domain.idempotency import AnyKey, InFlight, Keyed, KeyReused, Repeated, Replayed
from orchestrix.errors import ConflictError, Contention, OrchestrixError, RetryableError, Unavailable
from orchestrix.persistence import idempotency
from orchestrix.persistence.engine import Database, Transaction

T = TypeVar("T")

KEY_WAIT_TIMEOUT_S: Final = 2.0
"""Seconds that a request waits for another one with its key."""


class KeyTaken(ConflictError):
    """Another request with this key has committed first, or is about to."""


@dataclass(slots=True)
class _KeyLock:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0
    failed: RetryableError | None = None
    """The error by which the last request ended without a commit, for those that have waited for it."""


class IdempotencyKeys:
    """Serializes requests with the same key within this process; between processes the key's row does."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._locks: dict[tuple[str, str], _KeyLock] = {}

    async def run_once(self, key: AnyKey, work: Callable[[], Awaitable[T]]) -> T | Repeated:
        """What `work` returns, or without it what was answered to `key` before.

        `work` stores its answer in its own transaction and raises `KeyTaken` where another one's exists. Raises
        `RetryableError` for a caller that has waited for a request that ended without a commit.
        """
        name = (key.scope, key.key)
        key_lock = self._locks.setdefault(name, _KeyLock())
        key_lock.users += 1
        waits = key_lock.lock.locked()
        try:
            async with asyncio.timeout(KEY_WAIT_TIMEOUT_S):
                await key_lock.lock.acquire()
        except TimeoutError:
            return InFlight()
        else:
            try:
                before = await self.answered(key)
                if before is not None:
                    return before
                if waits and key_lock.failed is not None:
                    raise type(key_lock.failed)(str(key_lock.failed))
                return await self._first(key_lock, key, work)
            finally:
                key_lock.lock.release()
        finally:
            key_lock.users -= 1
            if not key_lock.users:
                self._locks.pop(name, None)

    async def answered(self, key: AnyKey) -> Replayed | KeyReused | None:
        """The result of the answer that is stored for `key`; None if none is."""
        async with self._database.read() as connection:
            stored = await idempotency.find(connection, key.scope, key.key)
        return key.before(stored)

    async def _first(self, key_lock: _KeyLock, key: AnyKey, work: Callable[[], Awaitable[T]]) -> T | Repeated:
        key_lock.failed = None
        try:
            return await work()
        except KeyTaken:
            return await self.answered(key) or InFlight()
        except BaseException as error:
            if isinstance(error, RetryableError):
                key_lock.failed = error
            elif not isinstance(error, OrchestrixError):  # a refusal: those who wait get their own
                key_lock.failed = Unavailable("the first request with this key ended without a commit")
            raise


async def claim(tx: Transaction, key: AnyKey) -> None:
    """Takes `key` for a transaction that is to store its answer. Raises `KeyTaken`.

    It stands first in the transaction: the second request has to get the answer of the first one, and not an error
    about what the first one has changed meanwhile.
    """
    try:
        mine = await idempotency.claim(tx, key.scope, key.key, key.fingerprint)
    except Contention as busy:  # nothing else is locked yet, so it is the key
        raise KeyTaken("another request with this key is still running") from busy
    if not mine:
        raise KeyTaken("another request with this key was first")


async def answer(tx: Transaction, key: Keyed[T] | None, done: T) -> T:
    """`done`, whose answer is stored for `key`, which the transaction has claimed."""
    if key is not None:
        await idempotency.complete(tx, key.scope, key.key, key.render(done))
    return done
