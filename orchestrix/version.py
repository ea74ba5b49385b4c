"""Version: which release this is, and under which name `pip` knows it."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
"""Defined only here: the metadata of the wheel and the HTTP API take it from here."""

DISTRIBUTION: Final = "orchestrix-sagas"
"""What `pip install` takes; the import and the command are `orchestrix`."""
