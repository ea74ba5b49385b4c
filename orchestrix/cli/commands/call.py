"""Call: sends the declared request of a command, and shows the answer."""

from __future__ import annotations

import argparse

from orchestrix.cli.api_request import answer
from orchestrix.cli.views import shown


def call(arguments: argparse.Namespace) -> int:
    """Any command whose declaration says all of it."""
    return shown(arguments, answer(arguments))
