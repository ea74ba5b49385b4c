"""Is what the page about schedules says true?"""

from __future__ import annotations

import json
import shlex
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from orchestrix.api.schedules.requests import NewSchedule
from orchestrix.cli.arguments import parse
from orchestrix.domain.cron import ALIASES, Cron
from orchestrix.domain.schedules import BACKFILL_LIMIT, CATCH_UP_LIMIT, QUEUED_RUNS_LIMIT, Misfire, Overlap
from tests.documents import ROOT, block

PAGE = ROOT / "docs" / "schedules.md"
TEXT = PAGE.read_text()
BERLIN = ZoneInfo("Europe/Berlin")
DAYS = ("2026-03-29", "2026-10-25")


def test_the_commands_can_be_typed() -> None:
    lines = block(PAGE, "sh", "schedules create").splitlines()
    assert len(lines) == 7
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "orchestrix"
        parse(arguments)


def test_the_body_is_accepted() -> None:
    body = NewSchedule.model_validate(json.loads(block(PAGE, "json", "nightly-report")), strict=True)
    assert body.name == "nightly-report"


def rows() -> list[list[str]]:
    table = TEXT.partition("<!-- clocks -->\n")[2].partition("<!-- /clocks -->")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


@pytest.mark.parametrize("row", rows(), ids=lambda row: str(row[0]))
def test_the_days_on_which_clocks_are_changed(row: list[str]) -> None:
    for day, expected in zip(DAYS, row[1:], strict=True):
        moment = datetime.fromisoformat(day).replace(tzinfo=BERLIN).astimezone(UTC) - timedelta(seconds=1)
        found = []
        while True:
            due = Cron(row[0].strip("`"), BERLIN).after(moment)
            assert due is not None
            local = due.astimezone(BERLIN)
            if local.replace(tzinfo=None) >= datetime.fromisoformat(day) + timedelta(hours=5):
                break
            found.append(local.isoformat(timespec="minutes").partition("T")[2])
            moment = due
        assert ", ".join(found) == expected


def test_words_and_limits_are_those_of_the_code() -> None:
    for word in (*Overlap, *Misfire, *ALIASES):
        assert f"`{word}`" in TEXT
    assert f"at most {QUEUED_RUNS_LIMIT:,} wait" in TEXT
    assert f"At most {BACKFILL_LIMIT:,}\n  at once" in TEXT
    assert f"at most {CATCH_UP_LIMIT}" in TEXT
