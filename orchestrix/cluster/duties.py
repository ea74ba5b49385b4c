"""Leader duties: the services that only the leader runs, from the gain of leadership to its loss."""

from __future__ import annotations

from collections.abc import Callable

from orchestrix.domain.leases import Fence
from orchestrix.lifecycle import Service

Duty = Callable[[Fence], Service]
"""Makes a part that only the leader runs: it is started at the gain of leadership and stopped at its loss.

Each of its writes ends with `persistence.leases.check(tx, fence)`, for it may run on for a moment after the loss, or
resume after another node has been elected. `StaleTermError` is then not its business: the loss stops it.
"""
