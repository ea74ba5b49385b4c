"""Instance names: which instance an argument means that may be its id or its name, and where it is in the API."""

from __future__ import annotations

import argparse
import string
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar
from urllib.parse import quote

from orchestrix.cli.api_client import ApiClient
from orchestrix.errors import Invalid, NotFound, OrchestrixError

Answer = TypeVar("Answer")
APP: Final = "app"
MAX_ID: Final = 2**53 - 1
_KINDS: Final = {"name": "schedule"}


def on_instance(arguments: argparse.Namespace, api: ApiClient, template: str, ask: Callable[[str], Answer]) -> Answer:
    """What `ask` makes of the path of the instance whose id, else whose name, the command has.

    A template without an instance is simply filled in. Raises `NotFound` if there is none of that id or name.
    """
    if "{base}" not in template or "{id}" not in template:
        return ask(path_of(arguments, template))
    text = str(arguments.id)
    if is_id(text):
        try:
            return ask(path_of(arguments, template))
        except NotFound:
            found = named(arguments.saga, text, api)
            if found is None:
                raise NotFound(_none_of(arguments.saga, text, api)) from None
    else:
        found = named(arguments.saga, text, api)
        if found is None:
            raise NotFound(f"no {_kind(arguments.saga)} named {text!r}")
    arguments.id = found
    return ask(path_of(arguments, template))


def id_of(saga: str, text: str, api: ApiClient) -> int:
    """The id that is written there, or that of what has that name. Raises `NotFound`."""
    found = int(text) if is_id(text) else named(saga, text, api)
    if found is None:
        raise NotFound(f"no {_kind(saga)} named {text!r}")
    return found


def is_id(text: str) -> bool:
    """Whether `text` can be the id of an instance."""
    return text.isascii() and text.isdigit() and len(text) < 17 and 0 < int(text) <= MAX_ID


def named(saga: str, name: str, api: ApiClient) -> int | None:
    """The id of the instance of that name, if there is one."""
    wanted = unicodedata.normalize("NFC", name)
    if not wanted:
        raise Invalid("an empty text is neither an id nor a name")
    sort = "appName" if saga == APP else "key"
    page = api.page(base(saga), {"q": wanted, "sort": sort, "limit": 1})  # what has the prefix and no more comes first
    found = [one["id"] for one in page["items"] if wanted in (one.get("appName"), one.get("key"))]
    return int(found[0]) if found else None


def base(saga: str) -> str:
    """Where the instances of the saga are."""
    return "/apps" if saga == APP else f"/sagas/{quoted(saga, 'saga')}"


def path_of(arguments: argparse.Namespace, template: str) -> str:
    """The template with the arguments in its fields; `{base}` is where the instances of the saga are."""
    given = vars(arguments)
    fields = {name for _, name, _, _ in string.Formatter().parse(template) if name}
    values = {name: quoted(str(given[name]), name) for name in fields - {"base"}}
    return template.format(base=base(arguments.saga), **values) if "base" in fields else template.format(**values)


def quoted(text: str, what: str) -> str:
    """`text` as one part of a path. Raises `Invalid` for what cannot be one."""
    if text in ("", ".", ".."):
        raise Invalid(f"{text!r} is no name of a {_KINDS.get(what, what)}")
    try:
        return quote(text, safe="")
    except UnicodeEncodeError as wrong:
        raise Invalid(f"the {_KINDS.get(what, what)}'s name is not valid text: write it in UTF-8") from wrong


def _kind(saga: str) -> str:
    return APP if saga == APP else f"{saga} instance"


def _none_of(saga: str, id: str, api: ApiClient) -> str:
    """There is none; if another saga has the id, that one is named: all sagas but apps count together."""
    text = f"no {_kind(saga)} with id {id}, and none named {id!r}"
    if saga == APP:
        return text
    with suppress(OrchestrixError, LookupError, TypeError):
        for other in api.document("/sagas")["items"]:
            if other["saga"] not in (saga, APP) and (found := _there(api, f"{base(other['saga'])}/{id}")):
                return f"{text}: {id} is {other['saga']} {found.get('key')!r} (ids are shared by all sagas)"
    return text


def _there(api: ApiClient, path: str) -> dict[str, Any] | None:
    try:
        return api.document(path)
    except NotFound:
        return None
