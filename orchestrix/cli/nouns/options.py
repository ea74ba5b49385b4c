"""Options: those that commands of several nouns have."""

from __future__ import annotations

from typing import Final

from orchestrix.cli.syntax.declarations import Option, option, switch
from orchestrix.cli.syntax.parsing import whole

RETRIES: Final = 0, 1000
LIMITS: Final = 1, 200
VERSIONS: Final = 1, 2**31 - 1
STRATEGIES: Final = (
    "FIRST",
    "LAST",
    "ROUND_ROBIN",
    "RANDOM",
    "CONSISTENT_HASH",
    "FAILOVER",
    "SHARDING_BROADCAST",
    "LEAST_LOADED",
    "WEIGHTED",
    "ADDRESS",
)
"""How an executor of a group is picked."""


def routing(outer: str, key: str) -> tuple[Option, ...]:
    """The options that say for which executors a job is; `outer` is where the job is in the body, `key` the default."""
    return (
        option("--group", "the app whose executors do it, as `registry list` shows it; instead of QUEUE", "APP",
               f"{outer}group"),
        option("--routing", f"with --group, how an executor is picked: {', '.join(STRATEGIES)} (ROUND_ROBIN)",
               "STRATEGY", f"{outer}routing.strategy", type=str.upper, choices=STRATEGIES),
        option("--key", f"with --group, what CONSISTENT_HASH keeps together ({key})", "KEY", f"{outer}routing.key"),
        option("--address", "with --routing ADDRESS: which executor, as http://host:port", "URL",
               f"{outer}routing.address"),
        option("--end", "with --routing SHARDING_BROADCAST: whether all must succeed or any (all)", "all|any",
               f"{outer}routing.end", choices=("all", "any")),
    )  # fmt: skip


LIMIT = option("--limit", "how many at once, at most 200", "N", "?limit", type=whole(*LIMITS))
CURSOR = option("--cursor", "go on where a list ended", "CURSOR", "?cursor")
PAGE = (LIMIT, CURSOR)
STATE = option("--state", "only in this state; again for more", "STATE", "?state", action="append", default=[])
CREATED_BY = option("--created-by", "only those asked for by WHO", "WHO", "?createdBy")
REASON = option("--reason", 'reason (default: "by hand (<user>)")', "TEXT", "reason")
BY = option("--by", "who asks for it (createdBy)", "WHO", "createdBy")
SAGA = option("saga", "the saga's name, as `sagas definitions` lists it", "SAGA")
DRY_RUN = switch("--dry-run", "only tell what would happen", "?dryRun")
DATABASE_URL = option("--database-url", "(prefer ORCHESTRIX_DATABASE_URL: arguments are visible in ps)", "URL")
BROKER_URL = option("--broker-url", "amqp://… (prefer ORCHESTRIX_BROKER_URL: arguments are visible in ps)", "URL")
URLS = (DATABASE_URL, BROKER_URL)
