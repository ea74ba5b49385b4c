"""Validation errors: which fields of a body are wrong, and what is to be sent instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, get_args

from pydantic import BaseModel
from pydantic_core.core_schema import ErrorType

from orchestrix.api.schema_text import ANYTHING, Form, form_of
from orchestrix.saga.validation.model_errors import MAX_ERRORS

UNSEEN: Final = object()
"""In the place of data that were not kept."""
MOST_KNOWN: Final = 20
"""At most so many of the known names are listed."""
LONGEST: Final = 500
"""Characters of a place, and of what is said about it."""

_PYDANTICS: Final = frozenset(get_args(ErrorType))
"""The types of errors whose texts are pydantic's; those of all others are the author's own."""
_SAID: Final = ("value_error", "assertion_error")
"""Here the author's text follows pydantic's."""

# What a JSON schema does not say, or says in another way than people do.
_SENTENCES: Final[Mapping[str, str]] = {
    "finite_number": "must be a finite number",
    "string_not_ascii": "must have no other characters than those of ASCII",
    "invalid_key": "must have texts as the names of its fields",
    "date_past": "must lie in the past",
    "date_future": "must lie in the future",
    "datetime_past": "must lie in the past",
    "datetime_future": "must lie in the future",
    "timezone_naive": "must be a time without a zone such as 2026-01-31T12:00:00",
    "timezone_aware": "must be a time with its zone such as 2026-01-31T12:00:00Z",
    "union_tag_not_found": "must say of which kind it is",
    "union_tag_invalid": "is of a kind that is not known here",
    "frozen_field": "cannot be changed",
    "frozen_instance": "cannot be changed",
    "recursion_loop": "must not contain itself",
    "recursion_depth_exceeded": "is nested too deeply",
}
# For bodies that no JSON schema describes: by the beginning of the error's type, the longest that fits.
_KINDS: Final[Mapping[str, str]] = {
    "string_": "a text",
    "bytes_": "a text",
    "int_": "a whole number",
    "float_": "a number",
    "decimal_": "a number",
    "fraction_": "a number",
    "complex_": "a number",
    "bool_": "true or false",
    "none_required": "null",
    "dict_": "an object",
    "mapping_": "an object",
    "model_": "an object",
    "dataclass_": "an object",
    "list_": "an array",
    "tuple_": "an array",
    "set_": "an array",
    "frozen_set_": "an array",
    "iterable_": "an array",
    "deque_": "an array",
    "date_": "a date such as 2026-01-31",
    "datetime_": "a time such as 2026-01-31T12:00:00Z",
    "time_": "a time of day such as 12:00:00",
    "time_delta_": "a length of time such as PT30S",
    "uuid_": "a UUID",
    "url_": "a URL such as https://example.org",
}
_NOT_SO: Final = "cannot be taken as it is: see what is wanted there in /openapi.json"

Place = tuple[str | int, ...]


def pointer(location: Sequence[str | int]) -> str:
    """`location` as a JSON pointer (RFC 6901, 3); the names in it are the client's, so a very long one is cut off."""
    return _cut("".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in location))


def wrong_fields(
    errors: Iterable[Mapping[str, Any]], model: type[BaseModel] | None, data: object = UNSEEN, *above: str
) -> list[dict[str, str]]:
    """JSON pointer and sentence for each of `errors`, as pydantic reports them about `data` that is no `model`.

    The sentences have none of pydantic's texts and no names of classes. `above` are the fields that `data` came in.
    Branches of a union that fail at one and the same place are one error. Of more than `MAX_ERRORS` the first ones are
    reported.
    """
    texts: dict[Place, list[str]] = {}
    for error in errors:
        if len(texts) >= MAX_ERRORS:
            break
        place, sentence = _is_described(error, model, data)
        if sentence not in texts.setdefault(place, []):
            texts[place].append(sentence)
    return [
        {"pointer": pointer((*above, *place)), "detail": _cut(sentence)}
        for place, sentences in texts.items()
        for sentence in _joined(sentences)
    ]


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _joined(sentences: list[str]) -> list[str]:
    begin = "must be "
    if len(sentences) > 1 and all(one.startswith(begin) for one in sentences):
        return [begin + " or ".join(one.removeprefix(begin) for one in sentences)]
    return sentences


def _is_described(error: Mapping[str, Any], model: type[BaseModel] | None, value: object) -> tuple[Place, str]:
    try:
        return _describe(error, form_of(model), value)
    except Exception:  # an author may have written any schema himself, also an invalid one
        return _describe(error, form_of(None), value)


def _describe(error: Mapping[str, Any], form: Form, value: object) -> tuple[Place, str]:
    """Where it is, and what is said about it."""
    place: list[str | int] = []
    around = form
    location, absent = tuple(error["loc"]), error.get("type") == "missing"
    for number, part in enumerate(location, 1):
        if (absent and number == len(location)) or _is_there(part, form, value):
            around, form, value = form, form.part(part), _below(value, part)
            place.append(part)
    return tuple(place), _sentence(error, form, around, place)


def _is_there(part: str | int, form: Form, value: object) -> bool:
    """Whether `part` is a place in the data. Pydantic names the branches of a union and the keys of a dict besides."""
    if isinstance(value, Mapping):
        return part in value
    if isinstance(value, list | tuple):
        return isinstance(part, int) and part < len(value)
    return value is UNSEEN and (isinstance(part, int) or part in form.known or len(form.nodes) < 2)


def _below(value: object, part: str | int) -> object:
    if isinstance(value, Mapping):
        return value.get(part, UNSEEN)
    return value[part] if isinstance(value, list | tuple) and isinstance(part, int) else value


def _sentence(error: Mapping[str, Any], form: Form, around: Form, place: Sequence[str | int]) -> str:
    type, text = str(error.get("type", "")), str(error["msg"])
    if type in _SAID:
        return text.partition(", ")[2] or _NOT_SO
    if type not in _PYDANTICS:
        return text
    if type == "missing":
        return f"is missing: send {form.kind}"
    if type == "extra_forbidden":
        return _unknown(str(place[-1]) if place else "", around.known)
    if type in _SENTENCES:
        return _SENTENCES[type]
    kind = form.kind if form.kind != ANYTHING else _kind(type)
    return f"must be {kind}" if kind is not None else _NOT_SO


def _kind(type: str) -> str | None:
    fitting = [begin for begin in _KINDS if type.startswith(begin)]
    return _KINDS[max(fitting, key=len)] if fitting else None


def _unknown(name: str, known: Sequence[str]) -> str:
    lowered = {one.casefold(): one for one in known}
    near = get_close_matches(name[:100].casefold(), lowered, n=1)
    if near:
        return f"is not known here: did you mean {lowered[near[0]]}?"
    if not known:
        return "is not known here: leave it out"
    more = ", …" if len(known) > MOST_KNOWN else ""
    return f"is not known here; known {_are(known)} {', '.join(known[:MOST_KNOWN])}{more}"


def _are(what: Sequence[str]) -> str:
    return "is" if len(what) == 1 else "are"
