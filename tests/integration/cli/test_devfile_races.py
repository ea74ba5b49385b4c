"""Do several processes agree on which `dev` has the folder?"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from orchestrix.cli import devfile
from orchestrix.errors import ConflictError, Unavailable
from tests.unit.cli.test_devfile import URLS, write_by_hand


@pytest.fixture
def other_dev(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that has claimed the folder and waits for its standard input to end."""
    program = (
        "import sys, pathlib\nfrom orchestrix.cli import devfile\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "with devfile.claimed(folder):\n"
        f"    devfile.write(folder, **{URLS!r})\n"
        "    print('claimed', flush=True)\n    sys.stdin.read()\n"
    )
    other = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout is not None
    assert other.stdout.readline() == b"claimed\n"
    with other:
        yield other
        other.kill()


def test_a_second_dev_is_refused_while_the_first_runs(tmp_path: Path, other_dev: subprocess.Popen[bytes]) -> None:
    with pytest.raises(ConflictError, match=f"process {other_dev.pid}"), devfile.claimed(tmp_path):
        pass
    assert devfile.path_of(tmp_path).exists(), "the loser must leave the winner's file alone"


def test_after_a_kill_the_file_is_known_to_be_dead_and_the_folder_is_free(
    tmp_path: Path, other_dev: subprocess.Popen[bytes]
) -> None:
    assert devfile.running(tmp_path) is not None
    other_dev.kill()
    other_dev.wait()
    assert devfile.read(tmp_path) is not None
    with pytest.raises(Unavailable, match="orchestrix dev"):
        devfile.running(tmp_path)
    with devfile.claimed(tmp_path):
        assert devfile.read(tmp_path) is None, "the dead one's addresses must not lead anybody astray"


def test_many_looks_never_keep_a_dev_from_starting(tmp_path: Path) -> None:
    write_by_hand(tmp_path, os.getpid())
    (tmp_path / devfile.FOLDER / "dev.lock").touch()
    stop = multiprocessing.get_context("spawn").Event()
    looker = multiprocessing.get_context("spawn").Process(target=look_until, args=(tmp_path, stop))
    looker.start()
    try:
        for _ in range(50):
            with devfile.claimed(tmp_path):
                devfile.write(tmp_path, **URLS)
    finally:
        stop.set()
        looker.join()
    assert looker.exitcode == 0


def look_until(folder: Path, stop: Event) -> None:
    """Reads without pause; a half-written file or any error but the foreseen ends it with a bad exit code."""
    while not stop.is_set():
        try:
            devfile.running(folder)
        except Unavailable:
            continue
