"""Is what an author's function has returned something that can be sent?"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from sagas.engine.flaws import flaw
from sagas.engine.messages import MAX_DATA, Unreadable, dump, explained, load
from sagas.engine.wanted import called


def sendable(output: object) -> dict[str, Any] | None:
    """`output` as its reader will have it. Raises `ValueError` with a sentence that says where it cannot be sent."""
    if output is None:
        return None
    if not isinstance(output, Mapping):
        raise ValueError(f"it is {called(output)}{_instead(output)}")
    try:
        return _read(output)
    except (TypeError, ValueError, RecursionError, Unreadable) as bad:
        raise ValueError(explained(bad)) from bad
    except Exception as broken:  # of a mapping of the author's own
        raise ValueError(f"it cannot be read: {type(broken).__name__}: {broken}") from broken


def _read(output: Mapping[Any, Any]) -> dict[str, Any]:
    if (wrong := flaw(output)) is not None:
        raise ValueError(wrong)
    body = dump(dict(output))
    if len(body) > MAX_DATA:
        raise ValueError(f"it has {len(body)} bytes, at most {MAX_DATA} are allowed")
    return load(body)


def _instead(output: object) -> str:
    if inspect.iscoroutine(output):
        output.close()  # nobody awaits it any more, and this is where that is said
    if inspect.isawaitable(output):
        return ", for an await is missing: write return await … in an async def"
    if isinstance(output, BaseModel):
        return ': return its .model_dump(mode="json")'
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        return ": return dataclasses.asdict(…) of it"
    return ": return a mapping, or None"
