"""What do the commands about jobs show of what the API says?"""

from __future__ import annotations

from tests.integration.cli.fake_api import FakeApi, Reply
from tests.integration.cli.samples import JOB
from tests.unit.cli.shell import Shell


def test_a_list_says_what_a_job_waits_for(api: FakeApi, shell: Shell) -> None:
    sentence = "no worker serves queue reports: start one with `orchestrix worker --job-queue reports`"
    items = [{**JOB, "waitsFor": sentence}, {**JOB, "id": "another", "waitsFor": None}]
    api.on("GET", "/jobs", Reply(body={"items": items, "nextCursor": None}))
    answer = shell("jobs", "list")
    assert answer.code == 0
    head, waiting, other = answer.out.splitlines()
    assert head.endswith("  WAITING FOR")
    assert waiting.endswith(f"  {sentence}")
    assert (other.split()[0], other.split()[-1]) == ("another", "-")
