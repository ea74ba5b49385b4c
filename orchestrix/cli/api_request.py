"""API requests: which API a command means, and the path, query, body and headers of its declared request."""

from __future__ import annotations

import argparse
import getpass
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orchestrix import clock
from orchestrix.cli import endpoints
from orchestrix.cli.api_client import ApiClient
from orchestrix.cli.instance_names import on_instance
from orchestrix.cli.settings import load
from orchestrix.cli.syntax.declarations import NULL, Option, ShellCommand
from orchestrix.config.file import HERE
from orchestrix.config.settings import Settings
from orchestrix.errors import Invalid, OutcomeUnknown


def api_of(arguments: argparse.Namespace) -> ApiClient:
    """The API of the settings, asked with their token. Raises `ConfigError` and `Unavailable` if none is configured."""
    known: ApiClient | None = getattr(arguments, "client", None)
    if known is not None:
        return known
    options = [one for one in arguments.declared.flat if one.to and one.flags[0].startswith("-")]
    flags = {one.to.lstrip("?").replace(".", "/"): one.flags[-1] for one in options}
    arguments.client = made = api_at(load(arguments), Path.cwd(), flags)
    return made


def api_at(settings: Settings, folder: Path, flags: Mapping[str, str] | None = None) -> ApiClient:
    """The same. The token goes only to an address that the user names, never to one that `dev.json` names."""
    token = settings.api.token.get_secret_value() if settings.api.token else None
    named = bool(settings.api_url) and not _by_the_folder(settings)
    url, withheld = endpoints.api(settings, folder), bool(token) and not named
    return ApiClient(url, token if named else None, withheld=withheld, flags=flags)


def _by_the_folder(settings: Settings) -> bool:
    """Whether the address is that of a file found in the working directory, which does not have the
    token as well: the folder may be another user's."""
    origin = settings.origin
    return origin.source == HERE and "api_url" in origin.counting and "api.token" not in origin.counting


def answer(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the API answers to the command's request. Of a list without `--limit`, the items of all pages.

    Raises `OrchestrixError`: what the API refuses, and what cannot be sent.
    """
    command: ShellCommand = arguments.declared
    method, _, template = command.request.partition(" ")
    query, body = query_of(arguments), {} if method == "GET" else body_of(arguments)
    with headers_of(arguments) as headers:
        api = api_of(arguments)
        if "createdBy" not in body and any(one.to == "createdBy" for one in command.flat) and not api.authenticated:
            body |= {"createdBy": who} if (who := user()) else {}  # a token says who asks

        def ask(path: str) -> dict[str, Any]:
            if method != "GET":
                return api.send(method, path, body, headers, query)
            if not isinstance(command.view, tuple):
                return api.document(path, query)
            if "limit" in vars(arguments):
                return api.page(path, query)
            return {"items": api.all_items(path, query)}

        return on_instance(arguments, api, template, ask)


def query_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The parameters that its options name."""
    sent = {one.to[1:]: value for one, value in _given(arguments, lambda to: to.startswith("?"))}
    return {name: "true" if value is True else value for name, value in sent.items() if value is not False}


def body_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The JSON object that its options name. Raises `Invalid`."""
    body: dict[str, Any] = {}
    for one, value in _given(arguments, lambda to: to[:1] not in ("", "?")):
        *outer, name = one.to.split(".")
        inner = body
        for step in outer:
            inner = inner.setdefault(step, {})
        inner[name] = None if value is NULL else value
    if any(one.to == "reason" for one in arguments.declared.flat):
        body["reason"] = reason_of(arguments)
    return body


def _given(arguments: argparse.Namespace, wanted: Callable[[str], bool]) -> Iterator[tuple[Option, Any]]:
    """The options that go to that place and have a value, with what is sent of it."""
    for one in filter(lambda one: wanted(one.to), arguments.declared.flat):
        value = getattr(arguments, one.dest)
        if value is not None and value != []:
            yield one, value if one.read is None else one.read(value, one.flags[0])


@contextmanager
def headers_of(arguments: argparse.Namespace) -> Iterator[dict[str, str]]:
    """The headers of a request that changes something.

    Where its outcome is unknown, and it has a key, the error says with which key it can be sent again.
    """
    given = vars(arguments)
    key = given.get("idempotency_key")
    if key is None and arguments.declared.keyed:
        key = clock.uuid7()
    version = given.get("if_version")
    match = {} if version is None else {"If-Match": f'"{version}"'}
    headers = match | ({} if key is None else _key_header(key))
    try:
        yield headers
    except OutcomeUnknown as lost:
        if key is None:
            raise
        texts = f"{lost}; the same command with --idempotency-key {key} does it at most once"
        raise OutcomeUnknown(texts) from lost


def _key_header(key: str) -> dict[str, str]:
    """The header by which a request is done once, however often it is sent. Raises `Invalid`."""
    if not 0 < len(key) <= 255 or not all("!" <= char <= "~" for char in key):
        raise Invalid("--idempotency-key takes 1 to 255 visible ASCII characters")
    return {"Idempotency-Key": key}


def reason_of(arguments: argparse.Namespace) -> str:
    """The user's reason; without one, that it was done by hand, and by which user of this machine."""
    if arguments.reason is not None:
        return str(arguments.reason)
    who = user()
    return "by hand" if who is None else f"by hand ({who})"


def user() -> str | None:
    """This machine's user."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container can run under a number without a user
        return None
