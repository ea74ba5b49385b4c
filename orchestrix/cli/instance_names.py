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
_ID: Final = "id:"
_NAME: Final = "name:"
_STEPS: Final = (".", "..")
"""Names that would be steps within a path if they stood there as they are. No saga has one of them."""
_KINDS: Final = {"name": "schedule", "app": "group"}


def on_instance(arguments: argparse.Namespace, api: ApiClient, template: str, ask: Callable[[str], Answer]) -> Answer:
    """What `ask` makes of the path of the instance that the command means, as `id_of` finds it.

    A template without an instance is simply filled in. Raises `NotFound` if there is none of that id or name, and
    `Invalid` for a number that is the id of one and the name of another.
    """
    if "{base}" not in template or "{id}" not in template:
        return ask(path_of(arguments, template))
    text = str(arguments.id)
    arguments.id = id_of(arguments.saga, text, api)
    try:
        return ask(path_of(arguments, template))
    except NotFound:
        if text.startswith(_NAME) or not is_id(text.removeprefix(_ID)):  # a name that was just found
            raise
        named(arguments.saga, text, api)  # raises what the API says of a saga that it does not know
        raise NotFound(_none_of(arguments.saga, text, api)) from None


def id_of(saga: str, text: str, api: ApiClient) -> int:
    """The id of the instance that `text` means: `id:` and an id, `name:` and a name, or one of them alone.

    A number alone is an id, or a name if no instance has that id. Raises `NotFound`, and `Invalid` for a number that is
    the id of one instance and the name of another.
    """
    if text.startswith(_ID):
        if not is_id(id := text.removeprefix(_ID)):
            raise Invalid(f"{id!r} is not an id; what is named {text!r} is {_NAME}{text}")
        return int(id)
    if is_id(text):
        return _by_number(saga, text, api)
    name = text.removeprefix(_NAME)
    if (found := named(saga, name, api)) is None:
        raise NotFound(f"no {_kind(saga)} named {name!r}")
    return found


def _by_number(saga: str, number: str, api: ApiClient) -> int:
    found = None
    with suppress(NotFound):  # dead letters and jobs of a saga that the API does not know are found by its ids
        found = named(saga, number, api)
    if found is None or found == int(number):
        return int(number)
    other = _there(api, f"{base(saga)}/{int(number)}")
    if other is None:
        return found
    kind, name = _kind(saga), other.get("appName") or other.get("key")
    also = f"{number} is the id of {kind} {name!r} and the name of {kind} {found}"
    raise Invalid(f"{also}: write {_ID}{number} or {_NAME}{number}")


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


def command_of(saga: str, verb: str, id: object) -> str:
    """The line to type that does `verb` to an instance."""
    return f"orchestrix apps {verb} {id}" if saga == APP else f"orchestrix sagas {verb} {saga} {id}"


def path_of(arguments: argparse.Namespace, template: str) -> str:
    """The template with the arguments in its fields; `{base}` is where the instances of the saga are."""
    given = vars(arguments)
    fields = {name for _, name, _, _ in string.Formatter().parse(template) if name}
    values = {name: quoted(str(given[name]), name) for name in fields - {"base"}}
    return template.format(base=base(arguments.saga), **values) if "base" in fields else template.format(**values)


def quoted(text: str, what: str) -> str:
    """`text` as one part of a path. Raises `Invalid` for what cannot be one."""
    if not text or (what == "saga" and text in _STEPS):
        raise Invalid(f"{text!r} is no name of a {_KINDS.get(what, what)}")
    if text in _STEPS:
        return text.replace(".", "%2E")
    try:
        return quote(text, safe="")
    except UnicodeEncodeError as wrong:
        raise Invalid(f"the {_KINDS.get(what, what)}'s name is not valid text: write it in UTF-8") from wrong


def _kind(saga: str) -> str:
    return APP if saga == APP else f"{saga} instance"


def _none_of(saga: str, text: str, api: ApiClient) -> str:
    """There is none; if another saga has the id, that one is named: all sagas but apps count together."""
    id = text.removeprefix(_ID)
    none = f"no {_kind(saga)} with id {id}{f', and none named {id!r}' if id == text else ''}"
    if saga == APP:
        return none
    with suppress(OrchestrixError, LookupError, TypeError):
        for other in api.document("/sagas")["items"]:
            if other["saga"] not in (saga, APP) and (found := _there(api, f"{base(other['saga'])}/{id}")):
                return f"{none}: {id} is {other['saga']} {found.get('key')!r} (ids are shared by all sagas)"
    return none


def _there(api: ApiClient, path: str) -> dict[str, Any] | None:
    try:
        return api.document(path)
    except NotFound:
        return None
