"""Which settings does this command run with, and where does each value come from?"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from orchestrix import config, crash
from orchestrix.cli import devfile, exits, output
from orchestrix.cli.places import hidden
from orchestrix.config import Settings
from orchestrix.errors import OrchestrixError
from orchestrix.telemetry import logs

_FLAGS = {
    "host": "http__host",
    "port": "http__port",
    "concurrency": "worker__concurrency",
    "database_url": "database_url",
    "broker_url": "broker_url",
    "api": "api_url",
    "token": "api__token",
}
HIDDEN = "***"
_FROM_DEV = ("database_url", "broker_url", "api_url")


def load(arguments: argparse.Namespace) -> Settings:
    """The settings under the flags of this command. Warns of variables without effect. Raises `ConfigError`."""
    crash.arm(os.environ)
    for sentence in config.idle_variables():
        exits.warn(sentence)
    return config.load(**flags(arguments))


def flags(arguments: argparse.Namespace) -> dict[str, Any]:
    """Those settings that the command line names."""
    given = vars(arguments)
    return {setting: given[flag] for flag, setting in _FLAGS.items() if given.get(flag) is not None}


def quieten(settings: Settings, arguments: argparse.Namespace) -> None:
    """For commands that answer by themselves: the log shows only what they cannot say, on stderr."""
    level = settings.log.level if chosen("log.level", arguments) else "error"
    form = "pretty" if settings.log.format == "auto" else settings.log.format
    log = settings.log.model_copy(update={"level": level, "format": form})
    logs.setup(log, node=settings.node_id, role="cli", stream=sys.stderr)


def show(arguments: argparse.Namespace) -> int:
    """`config show`."""
    folder = Path.cwd()
    settings = load(arguments)
    values = _flat(settings)
    sources = {name: source(name, os.environ, flags(arguments)) for name in values}
    _add_dev(values, sources, folder)
    items = [{"setting": name, "value": _shown(value), "source": sources[name]} for name, value in values.items()]
    if arguments.output == "json":
        output.print_json({"items": items})
    else:
        output.print_table(
            ("SETTING", "VALUE", "SOURCE"), [(item["setting"], item["value"], item["source"]) for item in items]
        )
    return exits.OK


def source(name: str, environ: Mapping[str, str], given: Mapping[str, Any]) -> str:
    """Who set the setting with that dotted name: `flag`, `env NAME`, `alias NAME` or `default`."""
    if name.replace(".", "__") in given:
        return "flag"
    variable = config.PREFIX + name.upper().replace(".", "__")
    if found := [key for key in environ if key.upper() == variable]:
        return f"env {found[-1]}"
    aliases = [alias for alias, meant in config.ALIASES.items() if meant == name and alias in environ]
    return f"alias {aliases[0]}" if aliases else "default"


def chosen(name: str, arguments: argparse.Namespace) -> bool:
    """Whether anybody set it, be it to the default."""
    return source(name, os.environ, flags(arguments)) != "default"


def _add_dev(values: dict[str, Any], sources: dict[str, str], folder: Path) -> None:
    try:
        found = devfile.running(folder)
    except OrchestrixError as error:
        return exits.warn(str(error))
    for name in _FROM_DEV:
        if not values[name] and found is not None:
            values[name], sources[name] = getattr(found, name), "dev.json"
    return None


def _flat(settings: Settings) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name in config.names():
        value: Any = settings
        for part in name.split("."):
            value = getattr(value, part)
        values[name] = _plain(value)
    return values


def _plain(value: Any) -> Any:
    """`value` for tables and JSON, with nothing of a secret but that there is one."""
    if isinstance(value, Mapping):
        return [f"{name}:{HIDDEN}" for name in value]
    return HIDDEN if isinstance(value, SecretStr) else list(value) if isinstance(value, tuple) else value


def _shown(value: Any) -> Any:
    return hidden(value) if isinstance(value, str) and "://" in value else value
