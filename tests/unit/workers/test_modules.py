"""Are the user's own modules loaded, and wrong ones refused with a sentence?"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrix.errors import ConfigError
from orchestrix.worker.module_loader import load_handlers, load_resources, load_sagas
from sagas.app_provisioning import APP_PROVISIONING

SAGA = """
from orchestrix import COMPLETED, NothingToUndo, Saga, Step
STEP = Step("send", "SENDING", "cmd.send", "evt.sent", COMPLETED, undo=NothingToUndo("mail is gone"))
WELCOME = Saga("welcome", (STEP,))
"""
WORKER = """
from orchestrix import handles
@handles("cmd.send")
def send(context, command):
    return {"sent": True}
"""

Write = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a file into the working directory; what was imported from there is forgotten at the end."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one not in ("", str(tmp_path))])
    before = set(sys.modules)

    def write(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_sagas_are_found_in_the_working_directory_which_is_looked_through_last(write: Write) -> None:
    write("my_welcome.py", SAGA)
    (saga,) = load_sagas(["my_welcome"])
    assert saga.name == "welcome"
    assert saga is not APP_PROVISIONING
    assert sys.path[-1] == str(Path.cwd())


def test_a_saga_that_two_modules_name_is_loaded_once(write: Write) -> None:
    write("my_first.py", SAGA)
    write("my_second.py", "from my_first import WELCOME")
    assert len(load_sagas(["my_first", "my_second"])) == 1


def test_handlers_are_those_that_the_module_defines_or_imports(write: Write) -> None:
    write("my_mail.py", WORKER)
    write("my_all.py", "from my_mail import send")
    write("my_package/__init__.py", "from . import inner")
    write("my_package/inner.py", WORKER.replace("cmd.send", "cmd.inner"))
    assert list(load_handlers(["my_mail"])) == ["cmd.send"]
    assert list(load_handlers(["my_all"])) == ["cmd.send"]
    assert list(load_handlers(["my_package"])) == ["cmd.inner"]
    assert set(load_handlers(["my_package", "my_mail"])) == {"cmd.inner", "cmd.send"}


def test_no_modules_are_no_handlers() -> None:
    assert (dict(load_handlers([])), load_sagas([])) == ({}, [])


@pytest.mark.parametrize("name", ["orchestrix", "orchestrix.worker"])
def test_modules_named_like_ours_are_refused(write: Write, name: str) -> None:
    with pytest.raises(ConfigError, match=r"ORCHESTRIX_WORKERS: .* is a package of Orchestrix; rename yours"):
        load_handlers([name])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("import my_nowhere", r"it imports 'my_nowhere', which Python does not find \(.*my_broken.py, line 1\)"),
        ("class Stop(BaseException): ...\nraise Stop('x')", "Stop: x .*my_broken.py, line 2"),
        ("raise SystemExit", "SystemExit: it called exit"),
        ("x = 1\nx.y", "AttributeError: .*my_broken.py, line 2"),
        ("def f(:", "invalid syntax .*my_broken.py, line 1"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        (SAGA.replace("evt.sent", "sent"), "saga 'welcome'.*must be evt.*/my_broken.py, line 4\\)"),
        (
            SAGA.replace("COMPLETED, undo", "COMPLETED, timeout=30, undo"),
            r"timedelta\(seconds=30\) .*broken.py, line 3",
        ),
        (SAGA + "x = Step('a')", r"Step\('a'\): state is missing: write Step\(\"pay\", .*/my_broken.py, line 5\)"),
        (
            SAGA + "Saga('x', stepps=())",
            r"Saga\('x', stepps=\(\)\): .* did you mean steps=?.*/my_broken.py, line 5\)",
        ),
        (SAGA + "NothingToUndo('')", r"expected a non-empty reason.*/my_broken.py, line 5\)"),
        (
            f"{WORKER}\nfrom orchestrix import job\n@job()\ndef f(context): ...",
            r"@job\(\): name is missing.*broken.py, line 8",
        ),
        (
            f"{WORKER}\nfrom orchestrix import job\n@job\ndef f(context): ...",
            r"@job\(my_broken.f\): .*broken.py, line 8",
        ),
        (WORKER.replace('("cmd.send")', "()"), r"@handles\(\): command is missing: write @handles.*broken.py, line 3"),
        (WORKER.replace("cmd.send", "cmd.x y"), r"@handles\('cmd.x y'\): command 'cmd.x y' must .*broken.py, line 3"),
        (f"{WORKER}\nfrom orchestrix import job\njob('x', grace='1')", "ten years.*broken.py, line 8"),
        ("", "has no saga at its top level"),
    ],
)
def test_a_module_that_cannot_be_used_is_named_with_the_cause(write: Write, text: str, sentence: str) -> None:
    write("my_broken.py", text)
    with pytest.raises(ConfigError, match=rf"ORCHESTRIX_SAGAS: module 'my_broken'.*{sentence}") as refused:
        load_sagas(["my_broken"])
    assert "\n" not in str(refused.value)


def test_a_module_that_is_not_there_is_named_with_the_place(write: Write) -> None:
    with pytest.raises(ConfigError, match=r"module 'my_pkg\.gone' cannot be imported: no module 'my_pkg' in /"):
        load_sagas(["my_pkg.gone"])


def test_a_module_without_handlers_is_refused(write: Write) -> None:
    write("my_empty.py", "")
    with pytest.raises(ConfigError, match=r"ORCHESTRIX_WORKERS: module 'my_empty' \(/.*my_empty.py\) has no handler"):
        load_handlers(["my_empty"])


@pytest.mark.parametrize(
    ("load", "variable"),
    [(load_sagas, "SAGAS"), (load_handlers, "WORKERS"), (load_resources, "RESOURCES")],
)
def test_where_there_is_a_file_the_module_may_be_named_there(
    write: Write, tmp_path: Path, load: Callable[..., object], variable: str
) -> None:
    write("my_empty.py", "")
    with pytest.raises(ConfigError, match=rf"^ORCHESTRIX_{variable} or orchestrix.toml: module 'my_empty'"):
        load(["my_empty"], str(tmp_path))
    with pytest.raises(ConfigError, match=rf"^ORCHESTRIX_{variable}: module 'my_empty'"):
        load(["my_empty"])


def test_two_modules_that_handle_one_command_are_refused(write: Write) -> None:
    write("my_a.py", WORKER)
    write("my_b.py", WORKER)
    with pytest.raises(ConfigError, match=r"cmd\.send has two handlers, my_a\.send and my_b\.send"):
        load_handlers(["my_a", "my_b"])
