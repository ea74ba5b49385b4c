"""Options: those that commands of several nouns have."""

from __future__ import annotations

from typing import Final

from orchestrix.cli.syntax.declarations import option, switch
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
