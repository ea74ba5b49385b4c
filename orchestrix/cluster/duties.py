"""What does a leader do, and when does it begin and end?"""

from __future__ import annotations

from collections.abc import Callable

from orchestrix.domain.leases import Fence
from orchestrix.lifecycle import Service

Duty = Callable[[Fence], Service]
"""Makes a part that only the leader runs: it is started at the gain of leadership and stopped at its loss.

Each of its writes ends with `persistence.leases.check(tx, fence)`, for it may run on for a moment after the loss, or
wake up after somebody else has been elected. `Deposed` is then not its business: the loss stops it.
"""
