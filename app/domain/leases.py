"""Who may write as the leader?"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fence:
    """What a leader's write carries: the term that it was made in, and the id of the node that holds it.

    Terms only rise, and each has one holder for ever. A write whose fence is not the newest term's is refused.
    """

    term: int
    holder: str
