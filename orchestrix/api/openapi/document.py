"""OpenAPI document: describes the declared operations and their models."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import models_json_schema
from pydantic_core import to_jsonable_python

from orchestrix.api import problems
from orchestrix.api.answers import JSON, AnswerPage
from orchestrix.api.guards.origin_guard import SAFE
from orchestrix.api.headers import CORRELATION, IDEMPOTENCY_KEY, IF_MATCH, IF_NONE_MATCH, LAST_EVENT_ID
from orchestrix.api.idempotency import REPLAYED
from orchestrix.api.operations import Operation, needs_body
from orchestrix.api.patterns import NAME
from orchestrix.api.query import Query, many_valued

Schema = dict[str, Any]
ABOUT: Final = (
    "Durable sagas over commands and events. A start answers as soon as it is committed; follow it by long-poll "
    "(`wait`) or by server-sent events. Every error is a problem of RFC 9457 with a `code`. `X-Trace-Id` is the trace "
    "of a request, where there is one."
)
TAGS: Final[Mapping[str, str]] = {
    "sagas": "Sagas of any name, your own among them.",
    "jobs": "Long work for the workers of a queue.",
    "schedules": "Jobs that start by themselves.",
    "registry": "Executors of apps: who is there, and which of them gets a job.",
    "shards": "Services of shards: which member works on which part.",
    "cluster": "The nodes and workers, and which node leads.",
    "control": "For operators: what is due, what is stuck, what was done, and what is to be sent again.",
    "traces": "The traces that this machine keeps.",
    "health": "For load balancers and for people.",
}


class FieldError(BaseModel):
    """What is wrong with one field."""

    pointer: str = Field(description="JSON pointer (RFC 6901) into the body.")
    detail: str


class ProblemBody(BaseModel):
    """An error as of RFC 9457."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    code: str = Field(description="Which error this is, for programs. The list is at `/docs`.")
    traceId: str | None = Field(None, description="The trace of the request, where there is one.")
    errors: list[FieldError] | None = Field(None, description="For status 422: every wrong field.")
    existing: str | None = Field(None, description="For `already_exists`: where the one of that name is.")
    allowed: list[str] | None = Field(None, description="For `illegal_transition`: the actions that fit the state.")
    current: int | None = Field(None, description="For `version_mismatch`: the version that it has now.")


BEARER: Final = "bearer"
SECURITY: Final = {
    BEARER: {
        "type": "http",
        "scheme": "bearer",
        "description": "A secret of `ORCHESTRIX_API__TOKENS`; the name of the token is the actor in histories and in "
        "the audit. Where no tokens are set, none is needed. One of `ORCHESTRIX_REGISTRY__TOKEN` opens `/api/registry` "
        "and `/api/registryRemove` alone, for its app where it is for one.",
    }
}
REF: Final = "#/components/schemas/{model}"
VISIBLE: Final = "^[!-~]+$"
REQUEST_HEADERS: Final[Mapping[str, tuple[str, Schema]]] = {
    IDEMPOTENCY_KEY: (
        "Makes a repetition safe: the stored answer is sent again. Kept for 24 hours.",
        {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!#-~][!-~]*$"},
    ),
    CORRELATION: (
        "Carried by every command and event; a UUID by default.",
        {"type": "string", "minLength": 1, "maxLength": 128, "pattern": VISIBLE},
    ),
    "traceparent": ("W3C Trace Context: the trace goes on with this. An invalid one is ignored.", {"type": "string"}),
    IF_MATCH: (
        "Only if the version is still this one: the ETag that was last seen, or `*` for any.",
        {"type": "string", "pattern": r'^(\*|(W/)?"[1-9][0-9]{0,9}")$'},
    ),
    IF_NONE_MATCH: ("The ETag that the client has.", {"type": "string"}),
    LAST_EVENT_ID: ("The id of the last event that was seen.", {"type": "string"}),
}
PATH: Final[Mapping[str, Schema]] = {
    "app": {"type": "string", "pattern": NAME, "minLength": 1, "maxLength": 200, "description": "The app's name."},
    "id": {"type": "integer", "format": "int64", "minimum": 1},
    "job": {"type": "string", "format": "uuid"},
    "history": {"type": "string", "format": "uuid"},
    "letter": {"type": "string", "format": "uuid"},
    "trace": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
    "node": {"type": "string", "minLength": 1, "maxLength": 100, "description": "Its id or its name."},
    "name": {"type": "string", "pattern": "^[a-z][a-z0-9_-]{0,39}$", "description": "The saga's name."},
    "schedule": {"type": "string", "minLength": 1, "maxLength": 100, "description": "Its id or its name."},
    "service": {"type": "string", "pattern": NAME, "minLength": 1, "maxLength": 200, "description": "Its name."},
}
"""What may stand in a path."""
EVERYWHERE: Final = ("bad_header", "misdirected", "internal_error")


def document(
    title: str, version: str, tags: Mapping[str, str], operations: Sequence[Operation], schemas: Schema
) -> Schema:
    """The document of the operations; `schemas` are those of their models."""
    paths: dict[str, dict[str, Schema]] = {}
    for one in operations:
        paths.setdefault(one.path.replace(":path}", "}"), {})[one.method.lower()] = described(one, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version, "description": ABOUT},
        "tags": [{"name": name, "description": about} for name, about in {**tags, **TAGS}.items()],
        "paths": paths,
        "components": {"schemas": dict(sorted(schemas.items())), "securitySchemes": SECURITY},
    }


def models_of(operations: Sequence[Operation], *more: type[BaseModel]) -> Schema:
    """The schemas of all models that the operations take and give, and of some `more`, by name."""
    asked = list(dict.fromkeys(one.body for one in operations if one.body is not None))
    texts = [model for one in operations for model in (one.answer, one.or_answer, *one.events.values())]
    given = list(dict.fromkeys(model for model in (*texts, *more) if model is not None))
    found = {**schemas(given, "serialization"), **schemas(asked, "validation")}
    return {name: with_example(schema, found) for name, schema in found.items()}


def schemas(models: Sequence[type[BaseModel]], mode: Any) -> Schema:
    """The schemas of the models, and of all that is in them."""
    _, found = models_json_schema([(model, mode) for model in models], ref_template=REF)
    defined: Schema = to_jsonable_python(found["$defs"], fallback=str)  # examples are as their authors wrote them
    return defined


def with_example(schema: Schema, others: Schema) -> Schema:
    """The schema with an example: that of a page is one of its items."""
    items = schema.get("properties", {}).get("items", {}).get("items", {})
    if "examples" in schema or "$ref" not in items:
        return schema
    inner = others[items["$ref"].rpartition("/")[2]].get("examples", [])
    properties = {"items": inner[:1], **{name: None for name in schema["properties"] if name == "nextCursor"}}
    return {**schema, "examples": [properties]} if inner else schema


def described(one: Operation, schemas: Schema) -> Schema:
    """One operation in the document."""
    found: Schema = {
        "tags": [one.tag],
        "summary": one.summary,
        "description": one.about,
        "operationId": one.name,
        "parameters": [*_in_path(one.path), *_in_query(one.query), *map(_header, one.headers)],
        "responses": {**_successes(one, schemas), **_problems(one)},
        "security": [] if one.public else [{BEARER: []}],
    }
    if one.body is not None:
        content = {JSON: {"schema": _reference(one.body)}}
        found["requestBody"] = {"required": needs_body(one.body), "content": content}
    return found


def _reference(model: type[BaseModel]) -> Schema:
    return {"$ref": REF.format(model=model.__name__)}


def _in_path(path: str) -> list[Schema]:
    names = re.findall(r"{(\w+)(?::path)?}", path)
    return [{"name": name, "in": "path", "required": True, "schema": PATH[name]} for name in names]


def _in_query(model: type[Query] | None) -> list[Schema]:
    if model is None:
        return []
    found = model.model_json_schema()
    required = {name: {"required": True} for name in found.get("required", ())}
    parameters = [_parameter(name, dict(one), model) for name, one in found.get("properties", {}).items()]
    return [one | required.get(one["name"], {}) for one in parameters]


def _parameter(name: str, schema: Schema, model: type[Query]) -> Schema:
    about = schema.pop("description")
    schema.pop("title", None)
    if schema.get("default", ...) is None or many_valued(model)[name]:
        schema.pop("default")
    if branches := [branch for branch in schema.pop("anyOf", ()) if branch != {"type": "null"}]:
        schema |= branches[0]  # absent is how nothing is sent in a query
    return {"name": name, "in": "query", "description": about, "schema": schema}


def _header(name: str) -> Schema:
    about, schema = REQUEST_HEADERS[name]
    return {"name": name, "in": "header", "description": about, "schema": schema}


def _successes(one: Operation, schemas: Schema) -> Schema:
    found: Schema = {str(one.status): _success(one, schemas)}
    if one.answer is not None and one.public:
        found["503"] = {**_success(one, schemas), "description": "No."}
    if IF_NONE_MATCH in one.headers:
        found["304"] = {"description": "The client has it: `If-None-Match`.", "headers": _sent(ETag=_ETAG)}
    return found | {str(status): {"description": about} for status, about in one.others.items()}


_ETAG: Final = "The version in quotes."


def _success(one: Operation, schemas: Schema) -> Schema:
    models = [model for model in (one.answer, one.or_answer) if model is not None]
    shown = [_reference(model) for model in models]
    content: Schema = {}
    if shown:
        content[JSON] = {"schema": shown[0] if len(shown) == 1 else {"anyOf": shown}}
        if examples := schemas.get(models[0].__name__, {}).get("examples"):
            content[JSON]["example"] = examples[0]
    content |= {media: {"schema": {"type": "string"}} for media in one.media}
    if one.events:
        texts = "; ".join(f"`{name}`, whose data is a `{model.__name__}`" for name, model in one.events.items())
        content["text/event-stream"] = {
            "schema": {"type": "string", "description": f"Server-sent events: {texts}."},
            "x-events": {name: _reference(model) for name, model in one.events.items()},
        }
    about = one.done or (models[0].__doc__ if models else "") or "The events, as they come."
    found: Schema = {"description": about.strip().partition("\n")[0], "content": content}
    if headers := _answer_headers(one):
        found["headers"] = headers
    return found


def _answer_headers(one: Operation) -> Schema:
    found: Schema = {}
    fields = one.answer.model_fields if one.answer is not None else {}
    if "version" in fields and "items" not in fields:
        found |= _sent(ETag=_ETAG)
    if one.answer is not None and issubclass(one.answer, AnswerPage):
        found |= _sent(Link='The next page, `rel="next"`.')
    if one.status == 201 or one.name.startswith(("create", "start")):
        found |= _sent(Location="Where it is from now on.")
    return found | (_sent(**{REPLAYED: "`true` for a stored answer."}) if IDEMPOTENCY_KEY in one.headers else {})


def _sent(**about: str) -> Schema:
    return {name: {"description": text, "schema": {"type": "string"}} for name, text in about.items()}


def codes_of(one: Operation) -> list[str]:
    """The codes of all problems that the operation can answer with."""
    found = [*one.problems, *EVERYWHERE]
    if one.public:
        return found
    found += ["unauthorized", "too_many_requests", "unavailable"]
    found += ["bad_parameter"] if one.query is not None else []
    found += ["not_found"] if "{" in one.path else []
    found += ["version_mismatch"] if IF_MATCH in one.headers else []
    found += ["idempotency_in_flight", "idempotency_key_reused"] if IDEMPOTENCY_KEY in one.headers else []
    if one.method not in SAFE:
        found += ["foreign_origin", "outcome_unknown"]
    elif one.events:
        found += ["foreign_origin"]
    if one.body is not None:
        found += ["malformed_json", "body_too_large", "unsupported_media_type", "invalid_body"]
    return list(dict.fromkeys(found))


def _problems(one: Operation) -> Schema:
    by_status: dict[int, list[str]] = {}
    for code in codes_of(one):
        by_status.setdefault(problems.CODES[code].status, []).append(code)
    return {str(status): _problem(status, codes) for status, codes in sorted(by_status.items())}


def _problem(status: int, codes: Sequence[str]) -> Schema:
    titles = "; ".join(f"{problems.CODES[code].title} (`{code}`)" for code in codes)
    examples = {code: {"value": problems.body_of(code, "…")} for code in codes}
    content = {problems.MEDIA_TYPE: {"schema": _reference(ProblemBody), "examples": examples}}
    answer: Schema = {"description": titles, "content": content}
    if status in (429, 503) or "idempotency_in_flight" in codes:
        answer["headers"] = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}}
    if status == 401:
        answer["headers"] = _sent(**{"WWW-Authenticate": "`Bearer`."})
    return answer
