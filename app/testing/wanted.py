"""Is what a story was told of the kind that is wanted, and what is to be written instead?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from app.errors import ConfigError
from sagas.engine.definition import Saga
from sagas.engine.wanted import FLAG, TEXT, WHOLE, Kind, complaint, number, of, perhaps

__all__ = ["FLAG", "OBJECT", "PERCENT", "SAGA", "TEXT", "WHOLE", "demand", "perhaps"]

OBJECT: Final = of("a mapping", '{"film": "Metropolis"}', Mapping)
SAGA: Final = of("a Saga", "ORDER after ORDER = Saga(…)", Saga)
PERCENT: Final = Kind(lambda value: number(value) and 0 <= float(str(value)) <= 100, "a percentage", lambda _: "50")


def demand(call: str, **given: tuple[Any, Kind]) -> None:
    """Raises `ConfigError` for the first of these parameters of `call` that is not of its kind."""
    for name, (value, kind) in given.items():
        if (wrong := complaint(f"{call}(", name, value, kind)) is not None:
            raise ConfigError(wrong)
