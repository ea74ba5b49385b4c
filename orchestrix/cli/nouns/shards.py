"""Commands `shards`: who works on which part of a service, and what a change would move."""

from __future__ import annotations

from typing import Final

from orchestrix.cli.nouns.options import CURSOR
from orchestrix.cli.syntax.declarations import CommandGroup, OneOf, ShellCommand, option
from orchestrix.cli.syntax.parsing import whole

SHARD_COUNTS: Final = 1, 100_000
WEIGHTS: Final = 0, 1_000
HISTORY: Final = 1, 200
_SERVICE: Final = option("service", "its name, as `shards show` lists it", "SERVICE")
_ONE: Final = "GET /shards/{service}"
_RUN: Final = "commands.shards"
_CHANGE: Final = OneOf((
    option("--leave", "that member leaves", "WORKER"),
    option("--join", "a member of that id joins", "WORKER"),
    option("--shards", "members report that shard count", "N", type=whole(*SHARD_COUNTS)),
), required=True)  # fmt: skip
SHARDS: Final = CommandGroup("shards", "services of shards: which member works on which part", (
    ShellCommand("show", "the services, or of one: who has which shards, what waits, and why",
                 "shards show\nshards show orders",
                 (option("service", "one service (all)", "SERVICE", nargs="?"),), "GET /shards",
                 run=f"{_RUN}:show"),
    ShellCommand("history", "the generations of a service: why each began, when, and how many shards moved",
                 "shards history orders",
                 (_SERVICE, option("--limit", "how many, at most 200 (20)", "N", "?limit", type=whole(*HISTORY)),
                  CURSOR), _ONE, run=f"{_RUN}:history"),
    ShellCommand("preview", "how many shards a change would move, and who would have what; changes nothing",
                 "shards preview orders --leave w-2\nshards preview orders --join w-9 --allocation minimal",
                 (_SERVICE, _CHANGE,
                  option("--weight", "with --join and minimal: how much it takes beside the others (1)", "N",
                         type=whole(*WEIGHTS)),
                  option("--allocation", "by which rule (that of the nodes): the even one, or that of the fewest moves",
                         choices=("even", "minimal"))), _ONE, run=f"{_RUN}:preview"),
))  # fmt: skip
