"""Version: which release this is, under which name `pip` knows it, and on which host it runs."""

from __future__ import annotations

import socket
from typing import Final

HOST_NAME_CHARS: Final = 255
"""What a name of DNS has at most (RFC 1035), and what is stored of one."""

VERSION: Final = "0.1.0"
"""Defined only here: the metadata of the wheel and the HTTP API take it from here."""

DISTRIBUTION: Final = "orchestrix-sagas"
"""What `pip install` takes; the import and the command are `orchestrix`."""


def host_name() -> str:
    """What this machine, or this container, calls itself."""
    return socket.gethostname()[:HOST_NAME_CHARS]
