"""Permissions: the line to type against a refusal of RabbitMQ that is about its user's rights."""

from __future__ import annotations

import re
import shlex
from typing import Final

_REFUSED: Final = re.compile(r"\bvhost '(?P<vhost>.*?)' refused for user '(?P<user>.*?)'")


def grant(vhost: str, user: str) -> str:
    """The line that gives the user all rights in the virtual host."""
    return f"rabbitmqctl set_permissions -p {shlex.quote(vhost)} {shlex.quote(user)} '.*' '.*' '.*'"


def grant_for(refusal: str) -> str | None:
    """The line that helps against a refusal of RabbitMQ; None where it is not about a user's rights."""
    found = _REFUSED.search(refusal)
    return grant(found["vhost"], found["user"]) if found is not None else None
