"""Permission commands: the `rabbitmqctl` line to type when RabbitMQ refuses something to its user."""

from __future__ import annotations

import re
import shlex
from typing import Final

_REFUSED: Final = re.compile(r"\bvhost '(?P<vhost>.*?)' refused for user '(?P<user>.*?)'")


def permissions_command(vhost: str, user: str) -> str:
    """The line that gives the user all rights in the virtual host."""
    return f"rabbitmqctl set_permissions -p {shlex.quote(vhost)} {shlex.quote(user)} '.*' '.*' '.*'"


def permissions_command_for(refusal: str) -> str | None:
    """The line that helps against a refusal of RabbitMQ; None where it is not about a user's rights."""
    found = _REFUSED.search(refusal)
    return permissions_command(found["vhost"], found["user"]) if found is not None else None
