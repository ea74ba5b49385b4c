"""Command settings: those that a command runs with, and where each value comes from."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from orchestrix import crash
from orchestrix.cli import devfile, exit_codes, output
from orchestrix.cli.shown_values import HIDDEN, fields_of, shown
from orchestrix.config import file as config_file
from orchestrix.config import settings as config
from orchestrix.config.error_text import nearest
from orchestrix.config.settings import Settings
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
_FROM_DEV = ("database_url", "broker_url", "api_url")


def load(arguments: argparse.Namespace, *, judged: bool = False) -> Settings:
    """The settings under the flags of this command. Warns of variables without effect. Raises `ConfigError`.

    `judged` says that the author's modules, which client commands do not import, declare which sections there are.
    """
    crash.arm(os.environ)
    settings = read(arguments)
    for sentence in idle(settings) if judged else config.idle_variables():
        exit_codes.warn(sentence)
    return settings


def read(arguments: argparse.Namespace) -> Settings:
    """The same without a warning."""
    file = config_file.found(getattr(arguments, "config", None), os.environ, Path.cwd())
    return config.load(file=file, **flags(arguments))


def idle(settings: Settings) -> list[str]:
    """A sentence for each variable without effect, and for each section of the file that no module declares.

    Says nothing of sections where a module cannot be imported: that is reported elsewhere.
    """
    sections = settings.origin.sections
    claimed = _claimed(settings) if sections else []
    if claimed is None:
        return config.idle_variables()
    known = {name.partition(".")[0] for name in claimed}
    named = settings.origin.named
    strange = {key for key in sections if key not in known and not _by_variables(named, key)}
    return [*config.idle_variables(claimed=claimed), *(_unclaimed(settings, key, known) for key in sorted(strange))]


def _claimed(settings: Settings) -> list[str] | None:
    from orchestrix.worker.author_code import load_sections

    try:
        return load_sections(settings).names
    except OrchestrixError:
        return None


def _by_variables(named: Mapping[str, str], section: str) -> bool:
    """Whether all that a section has came by variables, each of which is reported by itself."""
    return all(text.startswith(config.PREFIX) for name, text in named.items() if name.partition(".")[0] == section)


def _unclaimed(settings: Settings, section: str, known: Collection[str]) -> str:
    meant = nearest(section, [*known, *(name.partition(".")[0] for name in config.names() if "." in name)])
    hint = f"did you mean [{meant}]?" if meant else "no module of workers declares SETTINGS for it"
    return f"{settings.origin.file}: [{section}] has no effect: {hint}"


def flags(arguments: argparse.Namespace) -> dict[str, Any]:
    """Those settings that the command line names."""
    given = vars(arguments)
    return {setting: given[flag] for flag, setting in _FLAGS.items() if given.get(flag) is not None}


def quieten(settings: Settings, arguments: argparse.Namespace) -> None:
    """For commands with output of their own: the log, on stderr, shows only what they cannot say."""
    level = settings.log.level if chosen("log.level", arguments, settings) else "error"
    form = "pretty" if settings.log.format == "auto" else settings.log.format
    log = settings.log.model_copy(update={"level": level, "format": form})
    logs.setup(log, node=settings.node_id, role="cli", stream=sys.stderr)


def show(arguments: argparse.Namespace) -> int:
    """`config show`."""
    folder = Path.cwd()
    settings = load(arguments, judged=True)
    values = _flat(settings)
    sources = {name: source(name, os.environ, flags(arguments), settings) for name in values}
    _add_dev(values, sources, folder)
    _add_file(values, sources, settings)
    _add_sections(values, sources, settings)
    items = [{"setting": name, "value": value, "source": sources[name]} for name, value in values.items()]
    if arguments.output == "json":
        output.print_json({"items": items})
    else:
        rows = [(item["setting"], item["value"], item["source"]) for item in items]
        room = None if arguments.output == "wide" else output.terminal_columns()
        output.print_table(("SETTING", "VALUE", "SOURCE"), rows, room)
    return exit_codes.OK


def source(name: str, environ: Mapping[str, str], given: Mapping[str, Any], settings: Settings) -> str:
    """Who set the setting with that dotted name: `flag`, `env NAME`, `file NAME`, `alias NAME` or `default`."""
    if name.replace(".", "__") in given:
        return "flag"
    variable = config.PREFIX + name.upper().replace(".", "__")
    if found := [key for key in environ if key.upper() == variable]:
        return f"env {found[-1]}"
    if name in settings.origin.listed:
        return f"file {Path(settings.origin.file or '').name}"
    aliases = [alias for alias, meant in config.ALIASES.items() if meant == name and alias in environ]
    return f"alias {aliases[0]}" if aliases else "default"


def chosen(name: str, arguments: argparse.Namespace, settings: Settings) -> bool:
    """Whether it was set, be it to the default."""
    return source(name, os.environ, flags(arguments), settings) != "default"


def _add_dev(values: dict[str, Any], sources: dict[str, str], folder: Path) -> None:
    try:
        found = devfile.running(folder)
    except OrchestrixError as error:
        return exit_codes.warn(str(error))
    for name in _FROM_DEV:
        if not values[name] and found is not None:
            values[name], sources[name] = shown(getattr(found, name)), "dev.json"
    return None


def _add_file(values: dict[str, Any], sources: dict[str, str], settings: Settings) -> None:
    values["config"], sources["config"] = settings.origin.file, settings.origin.source or "default"


def _add_sections(values: dict[str, Any], sources: dict[str, str], settings: Settings) -> None:
    """What the author's modules declare; nothing where one cannot be imported."""
    from orchestrix.worker.author_code import load_sections

    try:
        sections = load_sections(settings)
    except OrchestrixError as error:
        return exit_codes.warn(str(error))
    for section, found in sections:
        for name, value in fields_of(found).items():
            place = f"{section}.{name}"
            values[place], sources[place] = value, _given_by(settings, place)
    return None


def _given_by(settings: Settings, place: str) -> str:
    named = {name.lower(): text for name, text in settings.origin.named.items()}
    text = named.get(place.lower())
    if text is None:
        return "default"
    return f"env {text}" if text.startswith(config.PREFIX) else f"file {Path(settings.origin.file or '').name}"


def _flat(settings: Settings) -> dict[str, Any]:
    return {name: _plain(settings.value_of(name)) for name in config.names()}


def _plain(value: Any) -> Any:
    """For tables and JSON; of a table, which is one of secrets, its names."""
    return [f"{name}:{HIDDEN}" for name in value] if isinstance(value, Mapping) else shown(value)
