"""Suggested command: the line by which a first instance of a resource is started, as `dev` shows it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Final

from pydantic_core import to_jsonable_python

from orchestrix.api.resources.requests import RequestModel
from orchestrix.api.schema_text import form_of
from orchestrix.resource import Resource
from orchestrix.saga.messages import dump

_EXAMPLES: Final = {"string": "first", "integer": 1, "number": 1, "boolean": True, "array": [], "object": {}}


def first_line(api_url: str, resource: Resource) -> str:
    """The line that starts an instance there; where no body is known that is taken, where the documentation is.

    The body is the first example of the request's model that is taken, else one that is made up.
    """
    for body in (*_examples(resource), _made_up(resource)):
        if (text := _taken(resource, body)) is not None:
            return f"curl -X POST {api_url}{resource.path} -H 'content-type: application/json' -d {shlex.quote(text)}"
    return f"{api_url}/docs    shows what POST {resource.path} takes"


def _examples(resource: Resource) -> Sequence[object]:
    known = resource.request.model_config.get("json_schema_extra")
    examples = known.get("examples") if isinstance(known, dict) else None
    return examples if isinstance(examples, list) else []


def _made_up(resource: Resource) -> object:
    """A value for each field that the request must have. None where they are not known."""
    schema = form_of(resource.request).top
    fields = schema.get("properties", {})
    try:
        return {name: _EXAMPLES.get(fields[name].get("type"), "first") for name in schema.get("required", ())}
    except (AttributeError, KeyError, TypeError):  # the model describes itself in a way of its own
        return None


def _taken(resource: Resource, body: object) -> str | None:
    """`body` in JSON, if that starts an instance."""
    try:
        raw = dump(to_jsonable_python(body, fallback=str))
        RequestModel.of(resource).wish(resource.saga, json.loads(raw), raw, "")
    except Exception:  # whatever the author's own code raises
        return None
    return raw.decode()
