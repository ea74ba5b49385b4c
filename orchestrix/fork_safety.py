"""Fork safety: makes a process that a user's function has forked release everything that is the library's.

A child of `os.fork` or `multiprocessing` inherits our signal handlers, sockets and lock. It must be able to end by
SIGTERM, must not keep what its parent's successor needs, and must never send anything on its parent's connections.
"""

from __future__ import annotations

import asyncio
import os
import select
import selectors
import signal
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, NoReturn

RETURNED_FROM_FORK_TEXT: Final = (
    "a process forked by a handler returned from the handler; it ends here, because the worker is its parent:"
    " use multiprocessing, or end the child by os._exit\n"
)
EXIT_CODE: Final = 70
"""EX_SOFTWARE of sysexits.h."""

_BLOCKED_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_masks = threading.local()
"""The signal mask of each thread that forks, from before the fork."""
_callbacks: list[Callable[[], None]] = []
_loop: asyncio.AbstractEventLoop | None = None


def on_fork(in_child: Callable[[], None]) -> Callable[[], None]:
    """`in_child` is called in every process that is forked from this one; its errors are ignored.

    It must not wait, nor take a lock that another thread may have held. Returns a function that removes the
    registration.
    """
    _callbacks.append(in_child)

    def forget() -> None:
        with suppress(ValueError):
            _callbacks.remove(in_child)

    return forget


def set_process_loop(loop: asyncio.AbstractEventLoop | None) -> None:
    """`loop` is the main loop of this process from now on, which its children release; None ends that."""
    global _loop
    _loop = loop


def _forked() -> None:
    global _loop
    callbacks, loop = list(_callbacks), _loop
    _callbacks.clear()
    _loop = None
    for call in callbacks:
        with suppress(Exception):
            call()
    if loop is not None:
        for let_go in (_signals, lambda: redirect_files_of(loop), lambda: _stop_inherited_loop(loop)):
            with suppress(Exception):
                let_go()


def _signals() -> None:
    """Resets the handlers as in a new process: ours are for the parent alone."""
    signal.set_wakeup_fd(-1, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def redirect_files_of(loop: Any) -> None:
    """Redirects the descriptors of a loop's connections and listening sockets to nothing, in a child.

    They are not just closed: the next file that the child opens would get the descriptor, and our data. The parent's
    epoll is shared with the child, and what the child took out of it would be lost to the parent.
    """
    selector = loop._selector
    redirect({*selector.get_map(), *loop._transports.keys()})
    if isinstance(selector, getattr(selectors, "EpollSelector", ())):
        empty = select.epoll()
        _redirect([loop._selector.fileno()], empty.fileno())
        empty.close()


def redirect(fds: Iterable[int]) -> None:
    """Redirects these descriptors to nothing, in a child."""
    nothing = os.open(os.devnull, os.O_RDWR)
    _redirect(fds, nothing)
    os.close(nothing)


def _redirect(fds: Iterable[int], other: int) -> None:
    for fd in fds:
        with suppress(OSError):
            os.dup2(other, fd, inheritable=False)


def _stop_inherited_loop(loop: Any) -> None:
    """The parent's tasks do not run here; a loop of the child's own may."""
    loop._run_once = _end
    asyncio._set_running_loop(None)
    asyncio.set_event_loop(None)


def _end() -> NoReturn:
    with suppress(OSError):
        os.write(2, RETURNED_FROM_FORK_TEXT.encode())
    os._exit(EXIT_CODE)


def _block_signals() -> None:
    """Otherwise a signal that reaches the child before its handlers are reset would be lost in ours."""
    if _loop is not None:
        _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED_SIGNALS)


def _unblock_signals() -> None:
    before = _masks.__dict__.pop("before", None)
    if before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _forked_and_unblock() -> None:
    try:
        _forked()
    finally:
        _unblock_signals()


if hasattr(os, "register_at_fork"):  # only on systems with fork
    os.register_at_fork(before=_block_signals, after_in_parent=_unblock_signals, after_in_child=_forked_and_unblock)
