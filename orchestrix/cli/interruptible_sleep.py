"""Interruptible sleep: waits, and ends at once by Ctrl-C."""

from __future__ import annotations

import threading


def pause(seconds: float) -> None:
    """Sleeps for that long; Ctrl-C ends it at once."""
    threading.Event().wait(seconds)
