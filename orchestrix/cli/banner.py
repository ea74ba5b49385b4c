"""Banner: what `dev` prints when it is ready."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from orchestrix.cli.endpoints import hidden
from orchestrix.cli.output import DIM, paint, visible

_SHOWN_ROLES = ("api", "orchestrator", "coordinator")


def banner(
    *,
    api_url: str,
    broker_url: str,
    database_url: str,
    tries: Sequence[str],
    roles: Sequence[str],
    notes: Sequence[str],
    seconds: float,
) -> str:
    """URLs, roles, one line to try, and how long the start took."""
    lines = {
        "API": f"{api_url}    docs {api_url}/docs",
        "Broker": f"embedded (development only)  {_without_login(broker_url)}",
        "Database": database(database_url),
        "Roles": ", ".join([*(role for role in _SHOWN_ROLES if role in roles), "workers"]),
    }
    lines |= {"Try" if place == 0 else " " * place: one for place, one in enumerate(tries)}
    text = [f"  {name:<9} {visible(value)}" for name, value in lines.items()]
    text += [f"  {'Note':<9} {visible(note)}" for note in notes]
    text.append(paint(f"Ready in {seconds:.1f}s. Ctrl-C to stop.", DIM))
    return "\n".join(text)


def database(url: str) -> str:
    """The kind of database and where it is, without password."""
    kind = url.split("+")[0]
    if kind == "sqlite":
        return f"sqlite {_near(unquote(hidden(url).split(':///', 1)[-1].partition('?')[0]))}"
    return hidden(url)


def _without_login(url: str) -> str:
    """The embedded broker accepts every login, and AMQP clients send guest:guest by default."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _near(path: str) -> str:
    here = Path.cwd()
    return f"./{Path(path).relative_to(here)}" if Path(path).is_relative_to(here) else path
