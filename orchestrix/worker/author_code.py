"""Author code: the handlers, the jobs and the settings that the author's modules define."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from types import ModuleType

from orchestrix.config.settings import Settings
from orchestrix.worker.handlers import HandlerTable
from orchestrix.worker.jobs.functions import JobTable
from orchestrix.worker.module_loader import WORKERS, load_handlers, load_jobs, load_modules
from orchestrix.worker.settings_sections import SettingsSections


@dataclass(frozen=True, slots=True)
class AuthorCode:
    """The loaded code; `replaced` are the commands, and `replaced_jobs` the jobs, that a module of the environment
    handles instead of the file's."""

    handlers: HandlerTable
    jobs: JobTable
    sections: SettingsSections
    replaced: Collection[str] = ()
    replaced_jobs: Collection[str] = ()


def load_author_code(settings: Settings) -> AuthorCode:
    """All of the modules of `settings`: handlers, jobs and sections of the environment's modules replace those of the
    file's. Raises `ConfigError`."""
    origin, names = settings.origin, settings.workers
    listed, own = (
        _loaded([name for name in names if (name in origin.workers) is by_file], origin.folder)
        for by_file in (True, False)
    )
    handlers = HandlerTable({**listed.handlers, **own.handlers}.items())
    jobs = JobTable({**listed.jobs, **own.jobs}.values())
    over = SettingsSections(settings, own.modules, own.functions)
    used = [*handlers.values(), *(one.function for one in jobs.values())]
    sections = SettingsSections(settings, listed.modules, used, over)
    with_settings = JobTable(replace(one, settings=sections.of(one.function)) for one in jobs.values())
    replaced = [name for name in own.handlers if handlers[name] is not listed.handlers.get(name, handlers[name])]
    replaced_jobs = [name for name in own.jobs if name in listed.jobs and own.jobs[name] is not listed.jobs[name]]
    return AuthorCode(handlers, with_settings, sections, replaced, replaced_jobs)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What some modules define."""

    modules: Sequence[ModuleType]
    handlers: HandlerTable
    jobs: JobTable

    @property
    def functions(self) -> list[object]:
        return [*self.handlers.values(), *(one.function for one in self.jobs.values())]


def _loaded(names: Sequence[str], folder: str | None) -> _Loaded:
    handlers = load_handlers(names, folder)
    return _Loaded(load_modules(names, WORKERS, folder), handlers, load_jobs(names, folder))


def load_sections(settings: Settings) -> SettingsSections:
    """The settings sections alone. Raises `ConfigError`."""
    return load_author_code(settings).sections
