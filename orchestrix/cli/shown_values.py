"""Shown values: settings for tables and JSON, with secrets hidden."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, SecretBytes, SecretStr
from pydantic_core import to_jsonable_python

from orchestrix.cli.endpoints import hidden

HIDDEN: Final = "***"
_BETWEEN: Final = re.compile(r"([,;\s]+)(?=[A-Za-z][A-Za-z0-9+.-]*://)")
"""What separates URLs in one text."""


def shown(value: Any) -> Any:
    """`value` as JSON can hold it; of what JSON cannot hold, its type's name."""
    if isinstance(value, SecretStr | SecretBytes):
        return HIDDEN
    try:
        return _clean(to_jsonable_python(value, by_alias=False))
    except Exception:  # also of the author's serializers
        return f"<{type(value).__name__}>"


def fields_of(model: BaseModel) -> dict[str, Any]:
    """The value of each field, as the model itself writes it; hidden where the model keeps it out of its own output."""
    found: dict[str, Any] = {}
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        kept_out = (field.exclude or not field.repr) and value is not None
        found[name] = HIDDEN if kept_out else _clean(_written(model, name, value))
    return found


def _written(model: BaseModel, name: str, value: object) -> Any:
    """One field alone, so that one that JSON cannot hold does not hide the others."""
    try:
        whole: object = model.model_dump(mode="json", include={name}, by_alias=False, warnings=False)
    except Exception:  # also of the author's serializers
        whole = None
    return whole[name] if isinstance(whole, Mapping) and name in whole else shown(value)


def _clean(value: Any) -> Any:
    """The same document without the passwords of URLs, and with no number that JSON lacks."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return {str(name): _clean(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _text(value: str) -> str:
    if value and not value.strip("*"):  # as pydantic writes a secret
        return HIDDEN
    return "".join(hidden(part) if "://" in part else part for part in _BETWEEN.split(value))
