"""Authored work: the handlers, the jobs and the settings that the author's modules bring."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from orchestrix.config import Settings

from .handlers import HandlerTable
from .jobs.functions import JobTable
from .modules import WORKERS, load_handlers, load_jobs, load_modules
from .sections import Sections


@dataclass(frozen=True, slots=True)
class Work:
    """What there is; `replaced` are the commands that a module of the environment handles instead of the file's."""

    handlers: HandlerTable
    jobs: JobTable
    sections: Sections
    replaced: Collection[str] = ()


def load_work(settings: Settings) -> Work:
    """All of the modules of `settings`. Raises `ConfigError`."""
    origin, names = settings.origin, settings.workers
    added = [name for name in names if name not in origin.workers]
    listed = load_handlers([name for name in names if name in origin.workers], origin.folder)
    own = load_handlers(added, origin.folder)
    handlers = HandlerTable({**listed, **own}.items())
    jobs = load_jobs(names, origin.folder)
    modules = load_modules(names, WORKERS, origin.folder)
    sections = Sections(settings, modules, [*handlers.values(), *(one.function for one in jobs.values())])
    with_settings = JobTable(replace(one, settings=sections.of(one.function)) for one in jobs.values())
    replaced = [name for name in own if name in listed and own[name] is not listed[name]]
    return Work(handlers, with_settings, sections, replaced)


def load_sections(settings: Settings) -> Sections:
    """The sections alone. Raises `ConfigError`."""
    return load_work(settings).sections
