"""Error text: what a setting takes, and which name was meant."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from typing import Any, Final

from pydantic import BaseModel

SIMILARITY_THRESHOLD: Final = 0.6
"""How alike two words must be, from 0 to 1, to be taken for one that was mistyped."""
_OWN_ERROR_TYPE: Final = {"value_error": "Value error, ", "assertion_error": "Assertion failed, "}
"""Errors whose text is a validator's own, and pydantic's prefix of it; the texts of all others are pydantic's, and are
not shown."""


def sentence(error: Mapping[str, Any], group: type[BaseModel] | None) -> str:
    """What to write instead of the value that `error` is about; `group` has the setting."""
    if error["type"] in _OWN_ERROR_TYPE:
        return str(error["msg"]).removeprefix(_OWN_ERROR_TYPE[error["type"]])
    name = str(error["loc"][-1]) if error["loc"] else ""
    schema = schema_of(group, name)
    if not schema:
        return "this value cannot be used"
    given = error.get("input")
    text = " (it is empty)" if isinstance(given, str) and not given.strip() else _meant(given, schema.get("enum", ()))
    return f"write {_kind(schema)}{text}"


def nearest(given: str, known: Iterable[str]) -> str | None:
    """The one of `known` that was most probably meant; None if none is really near.

    Compared word by word: the long prefixes of names are alike everywhere.
    """
    found = max(known, key=lambda one: _similarity(given, one), default=None)
    return found if found is not None and _similarity(given, found) else None


def schema_of(group: type[BaseModel] | None, name: str) -> Mapping[str, Any]:
    """What the setting takes, as a JSON schema without what stands for "not set"; empty where there is none of it, as
    an author's own model can have fields that no JSON schema describes."""
    try:
        whole = _schema(group) if group is not None else {}
    except Exception:
        return {}
    found: Mapping[str, Any] = whole.get("properties", {}).get(name, {})
    found = next((one for one in found.get("anyOf", ()) if one.get("type") != "null"), found)
    elsewhere: Mapping[str, Mapping[str, Any]] = whole.get("$defs", {})
    return elsewhere.get(str(found.get("$ref", "")).rpartition("/")[2], found)


@functools.cache  # many values of one group may be wrong
def _schema(group: type[BaseModel]) -> Mapping[str, Any]:
    return group.model_json_schema()


def _kind(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return f"one of {', '.join(map(str, schema['enum']))}"
    words = {
        "integer": "a whole number",
        "number": "a number",
        "boolean": "true or false",
        "array": "names separated by commas",
        "object": "a table of strings" if _of_texts(schema) else "a table",
    }
    return f"{words.get(schema.get('type', ''), 'a string')}{_bounds(schema)}"


def _of_texts(schema: Mapping[str, Any]) -> bool:
    inner = schema.get("additionalProperties")
    return isinstance(inner, Mapping) and inner.get("type") == "string"


def _bounds(schema: Mapping[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f" from {low:g} to {high:g}" if isinstance(high, float) else f" from {low} to {high}"
    return f", {low} or more" if low is not None else ""


def _meant(given: object, choices: Iterable[str]) -> str:
    near = difflib.get_close_matches(str(given)[:100].strip().lower(), list(choices), n=1)
    return f": did you mean {near[0]}?" if near else ""


def _similarity(given: str, known: str) -> float:
    """From 0, if they differ in more than a slip, to 1."""
    pairs = list(zip_longest(_words(given), _words(known), fillvalue=""))
    ratios = [difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs]
    if min(ratios, default=0.0) >= SIMILARITY_THRESHOLD:
        return sum(ratios) / len(ratios)
    return 1.0 if "".join(_words(given)) == "".join(_words(known)) else 0.0


def _words(name: str) -> list[str]:
    return [word for word in name.split("_") if word]
