"""Log protection: keeps an author's logging configuration from silencing the library's loggers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

LIBRARY_LOGGER: Final = "orchestrix"


@contextmanager
def protected_logging() -> Iterator[None]:
    """After the block our loggers, and the handlers that were there before, are restored.

    `logging.config.dictConfig` disables every logger that exists and takes the root's handlers away; `logging.disable`
    stops all. What the block has added stays.
    """
    root = logging.getLogger()
    before, level, least = [(one, one.level) for one in root.handlers], root.level, root.manager.disable
    states = {name: one.level for name, one in _ours().items()}
    try:
        yield
    finally:
        logging.disable(least)
        root.setLevel(level)
        root.disabled = False
        for handler, threshold in before:
            handler.setLevel(threshold)
            if handler not in root.handlers:
                root.addHandler(handler)
        for name, logger in _ours().items():
            logger.disabled, logger.propagate = False, True
            logger.setLevel(states.get(name, logging.NOTSET))


def _ours() -> dict[str, logging.Logger]:
    known = logging.getLogger().manager.loggerDict
    names = [name for name in known if name.partition(".")[0] == LIBRARY_LOGGER]
    return {name: one for name in names if isinstance(one := known[name], logging.Logger)}
