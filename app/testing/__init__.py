"""How do authors of sagas test them, without servers and in no time?

from app.testing import between, given

def test_no_stock() -> None:
    story = given(ORDER, handlers=orders, data={"film": "Metropolis"})
    story.when("cmd.pay").fails("NoFunds", retryable=False)
    story.run()
    story.expect(state="FAILED", undone=["reserve"])
"""

from app.testing.answers import When
from app.testing.endings import Ending
from app.testing.spans import between
from app.testing.stage import StoryError
from app.testing.story import Story, given

__all__ = ["Ending", "Story", "StoryError", "When", "between", "given"]
