"""Do handlers and jobs of a story read the settings that their module declares?"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel

from orchestrix import COMPLETED, Command, Context, Job, JobContext, NothingToUndo, Saga, Step, job
from orchestrix.errors import ConfigError
from orchestrix.testing import given, given_job
from orchestrix.testing.author_settings import settings_of
from orchestrix.testing.project import AuthorProject
from orchestrix.testing.simulation.processes import WorkerProcess
from orchestrix.worker.handlers import registered


class Mailer(BaseModel):
    """Where mail is sent from."""

    section: ClassVar[str] = "mailer"

    sender: str = "nobody"
    copies: int = 1


SETTINGS = Mailer
SEND = Step("send", "SENDING", "cmd.sendMail", "evt.mailSent", "FILING", NothingToUndo("it is gone"))
FILE = Step("file", "FILING", event="evt.mailFiled", then=COMPLETED, undo=NothingToUndo("a copy"), job=Job("fileMail"))
MAIL = Saga(name="mail", steps=(SEND, FILE))


async def send(context: Context, command: Command) -> dict[str, str]:
    """Tells who has sent it."""
    return {"sender": f"{context.settings.sender} {context.settings.copies}"}


async def file(context: Context, command: Command) -> dict[str, str]:
    """Tells the same, for a step that is a job."""
    return {"filed": context.settings.sender}


@job("countMails")
async def count(context: JobContext) -> dict[str, str]:
    """Tells the same, for a job."""
    return {"sender": context.settings.sender}


PARTS = {"cmd.sendMail": send, "fileMail": file}
ADA: Mapping[str, Mapping[str, Any]] = {"mailer": {"sender": "ada"}}


@pytest.mark.parametrize(("settings", "sender"), [(None, "nobody"), (ADA, "ada")])
def test_handlers_have_what_their_module_declares(settings: Any, sender: str) -> None:
    story = given(MAIL, handlers=PARTS, settings=settings).run()
    story.expect(state="COMPLETED", data={"sender": f"{sender} 1", "filed": sender})


@pytest.mark.parametrize(("settings", "sender"), [(None, "nobody"), (ADA, "ada")])
def test_so_have_jobs(settings: Any, sender: str) -> None:
    given_job(count, settings=settings).run().expect(result={"sender": sender})


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"mailer": {"copies": "many"}}, "^settings: mailer.copies: write a whole number$"),
        ({"mailer": {"copys": 2}}, r"^settings: mailer.copys is not a setting: did you mean copies\?$"),
        ({"mailr": {"copies": 2}}, r"declares the section 'mailr': did you mean mailer\?$"),
        ({"http": {"port": 2}}, "declares the section 'http': known: mailer$"),
        ({"mailer": "ada"}, "expected a mapping of sections or None"),
        ("ada", "expected a mapping of sections or None"),
    ],
)
def test_what_the_model_refuses_is_a_sentence(settings: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        given(MAIL, handlers=PARTS, settings=settings)
    with pytest.raises(ConfigError, match=says):
        given_job(count, settings=settings)


MODULE = """
from pydantic import BaseModel
from orchestrix import COMPLETED, NothingToUndo, Resource, Saga, Step, handles

class Letter(BaseModel):
    key: str = ""
    sender: str = ""

class LetterBody(BaseModel):
    id: int

class SETTINGS(BaseModel):
    sender: str = "nobody"

SEND = Step("post", "POSTING", "cmd.postLetter", "evt.letterPosted", COMPLETED, NothingToUndo("it is gone"))
LETTERS = Resource(Saga(name="letter", steps=(SEND,), data=Letter), "/letters", "key", Letter, LetterBody)

@handles("cmd.postLetter")
async def post(context, command):
    return {"sender": context.settings.sender}
"""


def test_a_project_has_those_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("ORCHESTRIX_CONFIG", raising=False)
    monkeypatch.setenv("ORCHESTRIX_LETTERS__SENDER", "grace")
    lists = "\n".join(f'{name} = ["letters"]' for name in ("resources", "workers"))
    (tmp_path / "orchestrix.toml").write_text(f'{lists}\n[letters]\nsender = "ada"\n')
    (tmp_path / "letters.py").write_text(MODULE)
    project = AuthorProject(tmp_path)
    try:
        letter = project.saga("letter")
        given(letter, handlers=project.handlers(letter)).run().expect(data={"sender": "grace"})
    finally:
        del sys.modules["letters"]


SECOND = """
from pydantic import BaseModel, SecretStr
from orchestrix import handles

class SETTINGS(BaseModel):
    stamp: str = "none"
    code: SecretStr

@handles("cmd.stampLetter")
async def stamp(context, command):
    return {"stamp": f"{context.settings.stamp} {context.settings.code.get_secret_value()}"}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AuthorProject]:
    """One with two modules that have settings, and a file that gives some."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("ORCHESTRIX_CONFIG", raising=False)
    before = list(registered)
    (tmp_path / "orchestrix.toml").write_text(
        'sagas = ["post_saga"]\nworkers = ["post_first", "post_second"]\n'
        '[post_first]\nsender = "ada"\n[post_second]\ncode = "007"\n'
    )
    (tmp_path / "post_first.py").write_text(MODULE[: MODULE.index("SEND")] + MODULE[MODULE.index("@handles") :])
    (tmp_path / "post_second.py").write_text(SECOND)
    (tmp_path / "post_saga.py").write_text(
        "from orchestrix import COMPLETED, FreeData, NothingToUndo, Saga, Step\n"
        'GONE = NothingToUndo("it is gone")\n'
        'POST = Step("post", "POSTING", "cmd.postLetter", "evt.letterPosted", "STAMPING", GONE)\n'
        'STAMP = Step("stamp", "STAMPING", "cmd.stampLetter", "evt.letterStamped", COMPLETED, GONE)\n'
        'SAGA = Saga(name="post", steps=(POST, STAMP))\n'
    )
    yield AuthorProject(tmp_path)
    registered[:] = before
    for name in ("post_saga", "post_first", "post_second"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("settings", "sender", "stamp"),
    [
        (None, "ada", "none 007"),
        ({}, "ada", "none 007"),
        ({"post_first": {"sender": "grace"}}, "grace", "none 007"),
        ({"post_second": {"stamp": "penny"}}, "ada", "penny 007"),
    ],
)
def test_what_a_test_gives_is_laid_over_those_of_the_project(
    project: AuthorProject, settings: Any, sender: str, stamp: str
) -> None:
    saga = project.saga("post")
    story = given(saga, handlers=project.handlers(saga), settings=settings).run()
    story.expect(data={"sender": sender, "stamp": stamp})


def test_what_a_test_calls_so_is_its_own() -> None:
    assert settings_of(WorkerProcess, ADA) is None, "its module has a SETTINGS that is no model"
