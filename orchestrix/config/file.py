"""Configuration file: finds and reads `orchestrix.toml`."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from orchestrix.errors import ConfigError

NAME: Final = "orchestrix.toml"
VARIABLE: Final = "ORCHESTRIX_CONFIG"
FLAG: Final = "--config"
HERE: Final = "working directory"
INSTALLED: Final = "installation"


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The content of the file at `path`; `source` says who named it: a flag, a variable, or the place it was found."""

    path: Path
    source: str
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The folder to which the names of its modules are relative: the file's own, also where a link led to it."""
        return self.path.resolve().parent


def found(flag: str | None, environ: Mapping[str, str], folder: Path, *, installed: bool = True) -> ConfigFile | None:
    """The file that `--config` or `ORCHESTRIX_CONFIG` names, else the one in `folder`, else that of the installation,
    unless `installed` is false.

    None if there is none. Raises `ConfigError` for one that is named and cannot be read, and for what is no TOML.
    """
    named = (flag, FLAG) if flag is not None else (environ.get(VARIABLE), VARIABLE)
    if named[0]:
        return read(Path(named[0]), named[1])
    for place, source in ((folder / NAME, HERE), (Path(sys.prefix) / NAME, INSTALLED)):
        if (installed or place.parent == folder) and os.path.lexists(place):
            return read(place, source)
    return None


def read(path: Path, source: str) -> ConfigFile:
    """The file at `path`. Raises `ConfigError`."""
    try:
        return ConfigFile(path.absolute(), source, tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        helps = f"{source} must point to an {NAME}" if source not in (HERE, INSTALLED) else "fix or remove it"
        raise ConfigError(f"{path} cannot be read ({error.strerror}): {helps}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8: save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
