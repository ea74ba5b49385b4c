"""Operation names: what the instances of a resource are called in operations and schemas, by its path.

`/apps` has `createApp`, `listApps`, `getApp`, …: the last `s` is dropped, and `ies` becomes `y`. `/line-items` has
`createLineItem`.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Noun(NamedTuple):
    """One of them and many of them, as words: `line item`, `line items`."""

    one: str
    many: str

    @property
    def name(self) -> str:
        """`LineItem`."""
        return _camel(self.one)

    @property
    def names(self) -> str:
        """`LineItems`."""
        return _camel(self.many)

    @property
    def member(self) -> str:
        """`lineItem`."""
        return self.name[:1].lower() + self.name[1:]

    @property
    def a_one(self) -> str:
        """`a line item`."""
        return f"{'an' if self.one[0] in 'aeiou' else 'a'} {self.one}"


def noun_of(path: str) -> Noun:
    """What is at `path`."""
    words = re.split("[-_]+", path[1:].strip("-_"))
    return Noun(" ".join([*words[:-1], _singular(words[-1])]), " ".join(words))


def _singular(word: str) -> str:
    """The word itself where nothing else would be left."""
    if word.endswith("ies"):
        return f"{word[:-3]}y" if word[:-3] else word
    return word[:-1] if word.endswith("s") and not word.endswith("ss") and word[:-1] else word


def _camel(words: str) -> str:
    return "".join(word[:1].upper() + word[1:] for word in words.split())
