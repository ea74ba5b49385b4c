"""How does a command let time pass?"""

from __future__ import annotations

import threading


def pause(seconds: float) -> None:
    """Does nothing for that long; Ctrl-C ends it at once."""
    threading.Event().wait(seconds)
