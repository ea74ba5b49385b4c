"""Do handlers and jobs of a story read the settings that their module declares?"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel

from orchestrix import COMPLETED, Command, Context, Job, JobContext, NothingToUndo, Saga, Step, job
from orchestrix.errors import ConfigError
from orchestrix.testing import given, given_job
from orchestrix.testing.cast import WorkerMember
from orchestrix.testing.own_settings import settings_of
from orchestrix.testing.project import Project


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
        ({"mailer": {"copies": "many"}}, "MAILER__COPIES: "),
        ({"mailer": "ada"}, "a mapping of sections or None is wanted"),
        ("ada", "a mapping of sections or None is wanted"),
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
    project = Project(tmp_path)
    try:
        letter = project.saga("letter")
        given(letter, handlers=project.handlers(letter)).run().expect(data={"sender": "grace"})
    finally:
        del sys.modules["letters"]


def test_what_a_test_calls_so_is_its_own() -> None:
    assert settings_of(WorkerMember, ADA) is None, "its module has a SETTINGS that is no model"
