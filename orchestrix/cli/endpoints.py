"""Endpoints: the database, broker and API of a command, by flag, then environment, then `dev.json`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from orchestrix.cli import devfile
from orchestrix.config.settings import Settings, redacted
from orchestrix.errors import ConfigError

EXAMPLE_API = "http://127.0.0.1:8080"


def database(settings: Settings, folder: Path) -> str:
    """The database's URL. Raises `ConfigError` if none is configured, `Unavailable` if it is that of a `dev` that is
    dead.
    """
    if settings.database_url:
        return settings.database_url
    if found := devfile.running(folder):
        return found.database_url
    raise ConfigError(_nowhere("database", "ORCHESTRIX_DATABASE_URL", folder))


def broker(settings: Settings, folder: Path) -> Callable[[], str]:
    """A function that returns the broker's URL, to be called again before each connect.

    Raises `ConfigError` if none is configured or it is `embedded`, `Unavailable` if it is that of a `dev` that is dead.
    """
    if url := settings.broker_url:
        _refuse_embedded(url)
        return lambda: url
    if found := devfile.running(folder):
        return devfile.broker_url(folder, found.broker_url)
    raise ConfigError(_nowhere("broker", "ORCHESTRIX_BROKER_URL", folder))


def api(settings: Settings, folder: Path) -> str:
    """The API's URL without a slash at the end.

    Raises `ConfigError` if none is configured or it is a bad one, `Unavailable` if it is that of a `dev` that is dead.
    There is no default: the usual port can be that of another folder's `dev`.
    """
    if settings.api_url:
        return http_url(settings.api_url)
    if found := devfile.running(folder):
        return http_url(found.api_url)
    raise ConfigError(_nowhere("API", "--api or ORCHESTRIX_API_URL", folder))


def http_url(url: str) -> str:
    """`url` without a slash at the end. Raises `ConfigError` if it is no URL of an HTTP server."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or any(char.isspace() or not char.isprintable() for char in url) or not url.isascii():
        raise ConfigError(f"{hidden(url)!r} is no URL of an API: write it like {EXAMPLE_API}")
    return url.split("?")[0].split("#")[0].rstrip("/")


def _refuse_embedded(url: str) -> None:
    if url == "embedded":
        raise ConfigError(
            "the embedded broker lives inside `orchestrix dev`: name a RabbitMQ by ORCHESTRIX_BROKER_URL=amqp://…, "
            "or start in the folder where dev runs, without ORCHESTRIX_BROKER_URL"
        )


def hidden(url: str) -> str:
    """`url` without its password, also where it is not a well-formed one."""
    try:
        return redacted(url)
    except ValueError:
        return url.split("://")[0] + "://***"


def _nowhere(what: str, names: str, folder: Path) -> str:
    return f"No {what} address given: set {names}, or run `orchestrix dev` in this folder ({folder})"
