"""Crash why: what is told of a saga whose command its workers died with."""

from __future__ import annotations

from typing import Protocol

from orchestrix.persistence.suspects import Suspect

CODE = "workers_died"


class Facts(Protocol):
    """What the answer is found from."""

    @property
    def suspect(self) -> Suspect | None:
        """What workers have noted of the command that is out."""


def found(facts: Facts) -> tuple[str, str, str] | None:
    """The entry for the catalogue, if workers have died with the command in hand."""
    if facts.suspect is None:
        return None
    return CODE, f"{told(facts.suspect)}.", f"Wait, or {HELPS}."


def told(suspect: Suspect) -> str:
    """How it stands, without a mark at its end."""
    return f"{suspect.deaths} workers have died with {suspect.queue} in hand; {suspect.place}"


HELPS = "look into the logs of the workers, and of their machines, for what ended them"
