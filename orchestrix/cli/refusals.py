"""Refusals: what the API refuses, in the shell's terms."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

_COMMANDS: Final = {"set-deadline": "deadlines extend", "cancel-deadline": "deadlines cancel"}
"""Verbs of the API that are another command here."""
_IF_MATCH: Final = re.compile(r'send If-Match: "(\d+)"')
_ARRAY: Final = re.compile(r"(--[a-z-]+) must be an array of ")
"""An option that is given once for each item has no array."""
_RETRY: Final = re.compile(r"[:.,; ]+(?:try|retry) again$|[:.,; ]+retry(?: in [0-9]+ s)?$", re.IGNORECASE)


def sentence(problem: Mapping[str, Any], status: int, flags: Mapping[str, str], retry_after: str | None) -> str:
    """The text of a problem (RFC 9457). `flags` has the option for each name of a parameter or a field."""
    text = str(problem.get("detail") or problem.get("title") or f"the API answers {status}").removesuffix(".")
    details = problem.get("errors")
    parts = [_part(error) for error in details] if isinstance(details, list) else []
    verbs = problem.get("allowed")
    if isinstance(verbs, list):
        named = ", ".join(_COMMANDS.get(str(verb), str(verb)) for verb in verbs)
        parts.append(f"possible now: {named}" if named else "no actions are possible")
    whole = _in_flags("; ".join([text, *(part for part in parts if part and part not in text)]), flags)
    return f"{_RETRY.sub('', whole)}. Retry in {retry_after} s" if retry_after else whole


def _part(error: Any) -> str:
    if not isinstance(error, dict):
        return str(error)
    where = error.get("pointer") or error.get("field") or error.get("loc") or error.get("parameter")
    what = str(error.get("detail") or error.get("message") or error.get("msg") or "")
    name = str(where or "").removeprefix("/")
    if not name:
        return what
    return f"{name} {what}" if what[:1].islower() else f"{name}: {what}"


def _in_flags(text: str, flags: Mapping[str, str]) -> str:
    """The same with options instead of the names that begin a clause, and of headers."""
    for name, flag in flags.items():
        text = re.sub(rf"(^|; ){re.escape(name)}(?:/(\d+))?(?=[ :])", partial(_in_flag, flag), text)
    text = _ARRAY.sub(r"\1 must be ", text)
    return _IF_MATCH.sub(r"use --if-version \1", text).replace("%2B", "+")


def _in_flag(flag: str, found: re.Match[str]) -> str:
    """The option; of one that is given more than once, its number."""
    return f"{found[1]}{flag}{f' (number {int(found[2]) + 1})' if found[2] else ''}"
