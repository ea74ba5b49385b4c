"""API requests: which API and which saga a command means, and what it sends there."""

from __future__ import annotations

import argparse
import getpass
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

from orchestrix import clock
from orchestrix.cli import endpoints
from orchestrix.cli.api_client import ApiClient
from orchestrix.cli.settings import load
from orchestrix.config.file import HERE
from orchestrix.config.settings import Settings
from orchestrix.errors import Invalid, OutcomeUnknown
from orchestrix.saga.messages import explained

APP = "app"


def api_of(arguments: argparse.Namespace) -> ApiClient:
    """The API of the settings, asked with their token. Raises `ConfigError` and `Unavailable` if nobody names one."""
    return api_at(load(arguments), Path.cwd())


def api_at(settings: Settings, folder: Path) -> ApiClient:
    """The same. The token goes only to an address that the user names, never to one that `dev.json` names."""
    token = settings.api.token.get_secret_value() if settings.api.token else None
    named = bool(settings.api_url) and not _by_the_folder(settings)
    return ApiClient(endpoints.api(settings, folder), token if named else None, withheld=bool(token) and not named)


def _by_the_folder(settings: Settings) -> bool:
    """Whether the address is that of a file found in the working directory, which does not have the
    token as well: anybody may own the folder."""
    origin = settings.origin
    return origin.source == HERE and "api_url" in origin.counting and "api.token" not in origin.counting


def path_of(arguments: argparse.Namespace, instance: int | None = None) -> str:
    """Where the instances of the saga are, or one of them."""
    base = "/apps" if arguments.saga == APP else f"/sagas/{_quoted(arguments.saga)}"
    return base if instance is None else f"{base}/{instance}"


def words(arguments: argparse.Namespace, action: str) -> str:
    """The command that does `action` to the same kind of saga."""
    return f"apps {action}" if arguments.saga == APP else f"sagas {action} {arguments.saga}"


def json_object(text: str, flag: str) -> dict[str, Any]:
    """The JSON object that stands behind `flag`. Raises `Invalid`."""
    try:
        found = json.loads(text, parse_constant=_no_number, parse_float=_small_enough)
    except (ValueError, RecursionError) as wrong:
        raise Invalid(f'{flag} is not JSON ({explained(wrong)}): write an object, as \'{{"team": "blue"}}\'') from wrong
    if not isinstance(found, dict):
        raise Invalid(f'{flag} must be a JSON object, as \'{{"team": "blue"}}\'')
    return found


def key_header(key: str) -> dict[str, str]:
    """The header by which a request is done once, however often it is sent. Raises `Invalid`."""
    if not 0 < len(key) <= 255 or not all("!" <= char <= "~" for char in key):
        raise Invalid("--idempotency-key takes 1 to 255 visible ASCII characters")
    return {"Idempotency-Key": key}


@contextmanager
def keyed(arguments: argparse.Namespace) -> Iterator[dict[str, str]]:
    """The header with the command's key: the one that the user gives, else one of its own.

    Where the outcome of the request is unknown, the error says with which key it can be sent again.
    """
    key = clock.uuid7() if arguments.idempotency_key is None else arguments.idempotency_key
    headers = key_header(key)
    try:
        yield headers
    except OutcomeUnknown as lost:
        told = f"{lost}; the same command with --idempotency-key {key} does it at most once"
        raise OutcomeUnknown(told) from lost


def reason_of(arguments: argparse.Namespace) -> str:
    """The user's reason; without one, that it was done by hand, and by which user of this machine."""
    if arguments.reason is not None:
        return str(arguments.reason)
    try:
        return f"by hand ({getpass.getuser()})"
    except (OSError, KeyError, ImportError):  # a container can run under a number that nobody has
        return "by hand"


def _quoted(name: str) -> str:
    if name in ("", ".", ".."):
        raise Invalid(f"{name!r} is no name of a saga")
    try:
        return quote(name, safe="")
    except UnicodeEncodeError as wrong:
        raise Invalid("the saga's name is not valid text: write it in UTF-8") from wrong


def _small_enough(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:40]} is larger than JSON's readers can hold")
    return number


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
