"""How does each statement get compiled once in a run, although nearly every test makes an engine of its own?

SQLAlchemy keeps compiled statements by engine. To compile them anew costs a test more than to run them.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Engine, event
from sqlalchemy.util import LRUCache

_MOST: Final = 2000
_ALL: Final[LRUCache[Any, Any]] = LRUCache(_MOST)
_KINDS: Final[dict[Any, int]] = {}
_SIMPLE: Final = (bool, int, str, tuple, type(None))


class CompiledStatements:
    """What one engine keeps them in: shared, once its dialect knows its server, with all whose dialect is alike."""

    def __init__(self, engine: Engine) -> None:
        self._dialect = engine.dialect
        self._own: dict[Any, Any] = {}
        self._kind: int | None = None
        # After SQLAlchemy's own listener, which asks the server what it is.
        event.listen(engine.pool, "first_connect", self._share)

    def get(self, key: Any) -> Any:
        """The compiled statement, or None."""
        return self._own.get(key) if self._kind is None else _ALL.get((self._kind, *key[1:]))

    def __setitem__(self, key: Any, compiled: Any) -> None:
        if self._kind is None:
            self._own[key] = compiled
        else:
            _ALL[(self._kind, *key[1:])] = compiled

    def __len__(self) -> int:
        return len(self._own)

    def clear(self) -> None:
        """Forgets what is this engine's alone."""
        self._own.clear()

    def _share(self, *_: object) -> None:
        known = vars(self._dialect)
        told = tuple((name, known[name]) for name in sorted(known) if isinstance(known[name], _SIMPLE))
        serializers = known.get("_json_serializer"), known.get("_json_deserializer")
        quote = self._dialect.identifier_preparer.initial_quote
        self._kind = _KINDS.setdefault((type(self._dialect), told, serializers, quote), len(_KINDS))


class _Kept:
    """The attribute of an engine in which SQLAlchemy puts its own store."""

    def __get__(self, engine: Engine, _: object = None) -> Any:
        return vars(engine)["_compiled_cache"]

    def __set__(self, engine: Engine, store: Any) -> None:
        vars(engine)["_compiled_cache"] = CompiledStatements(engine) if isinstance(store, LRUCache) else store


def keep() -> None:
    """From now on, in this process, engines share what they compile."""
    Engine._compiled_cache = _Kept()  # type: ignore[assignment]
