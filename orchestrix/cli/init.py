"""Init: `orchestrix init` writes a small service, with its test, into a folder."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from orchestrix.cli import exit_codes, output
from orchestrix.errors import ConflictError, PermanentError

TEMPLATE: Final = Path(__file__).with_name("template")
SUFFIX: Final = ".tmpl"
"""What files of the template end with, so that no tool takes them for code of this package."""


def init(arguments: argparse.Namespace) -> int:
    """`init [DIR]`. Raises `ConflictError`, and writes nothing, if one of the files is there."""
    folder = Path(arguments.dir)
    files = _template()
    try:
        if os.path.lexists(folder) and not folder.is_dir():
            raise PermanentError(f"{folder} is no folder: name another")
        if taken := [str(path) for path in sorted(files) if _is_taken(folder, path)]:
            raise ConflictError(
                f"{folder} has {', '.join(taken)} already, so that nothing was written: name another folder"
            )
        _write(folder, files)
    except FileExistsError as error:
        raise ConflictError(
            f"{error.filename} has just come into being, so that nothing was written: try again"
        ) from error
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise PermanentError(f"{folder} cannot be written to ({why}): name a folder of your own") from error
    if arguments.output == "json":
        output.print_json({"folder": str(folder.resolve()), "files": [str(path) for path in files]})
    else:
        print("\n".join(output.visible(line) for line in _describe(folder, files)))
    return exit_codes.OK


def _template() -> Mapping[Path, str]:
    """The files to write, by their paths in the folder."""
    found = (path for path in TEMPLATE.rglob(f"*{SUFFIX}") if path.is_file())
    return {path.relative_to(TEMPLATE).with_suffix(""): path.read_text(encoding="utf-8") for path in sorted(found)}


def _is_taken(folder: Path, path: Path) -> bool:
    """Whether there is something at the file's place, be it a link to nowhere, or a file where its folder would be."""
    if os.path.lexists(folder / path):
        return True
    return any(os.path.lexists(folder / one) and not (folder / one).is_dir() for one in path.parents)


def _write(folder: Path, files: Mapping[Path, str]) -> None:
    """Writes all of them, or none."""
    written: list[Path] = []
    try:
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            with (folder / path).open("x", encoding="utf-8") as file:
                written.append(folder / path)
                file.write(text)
    except BaseException:
        for path in written:
            with suppress(OSError):
                path.unlink()
        raise


def _describe(folder: Path, files: Mapping[Path, str]) -> list[str]:
    """What was written, and what to type next, line by line."""
    enter = [] if folder.resolve() == Path.cwd() else [f"  cd {shlex.quote(str(folder))}"]
    return [
        f"Wrote a small service to {folder}: {', '.join(map(str, files))}",
        "",
        *enter,
        "  orchestrix dev      # runs it; README.md says what to try then",
        "  python -m pytest    # tests it, also with crashes (pip install pytest)",
    ]
