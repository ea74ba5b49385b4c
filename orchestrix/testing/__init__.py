"""How do authors of sagas and of jobs test them, without servers and in no time?

from orchestrix.testing import between, given, given_job

def test_no_stock() -> None:
    story = given(ORDER, handlers=orders, data={"film": "Metropolis"})
    story.when("cmd.pay").fails("NoFunds", retryable=False)
    story.run()
    story.expect(state="FAILED", undone=["reserve"])

def test_reindex() -> None:
    story = given_job(reindex, payload={"pages": 3}).cancel(after="page 2").run()
    story.expect(status="CANCELLED", logs=["page 1", "page 2"])
"""

from orchestrix.testing.answers import When
from orchestrix.testing.endings import Ending
from orchestrix.testing.job_story import JobStory, given_job
from orchestrix.testing.spans import between
from orchestrix.testing.stage import StoryError
from orchestrix.testing.story import Story, given

__all__ = ["Ending", "JobStory", "Story", "StoryError", "When", "between", "given", "given_job"]
