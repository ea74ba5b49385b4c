"""How does the product do with a million apps in its tables?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import urlencode

from tests.bench.measure import Spread, spread
from tests.bench.product import Product
from tests.bench.servers import Servers

FIRST: Final = datetime(2026, 1, 1, tzinfo=UTC)
# One app a second. Names grow with time, as they do with most people; the failures are old; `rare` failed now and then;
# `steady` never failed, but started a third of all.
_APPS: Final = """
INSERT INTO apps (app_name, created_by, state, created_at, updated_at, version, correlation_id, attempt, wait_ms, data,
                  definition_version)
SELECT 'app-' || lpad(n::text, 7, '0'),
       CASE WHEN n % 3 = 0 THEN 'steady' WHEN n % 5000 = 1 THEN 'rare' ELSE 'user-' || n % 1000 END,
       CASE WHEN n % 3 <> 0 AND n < {apps} / 10 AND n % 10 = 1 THEN 'FAILED' ELSE 'COMPLETED' END,
       timestamptz '2026-01-01 00:00:00Z' + n * interval '1 second',
       timestamptz '2026-01-01 00:00:01Z' + n * interval '1 second',
       4, 'stored-' || n, 1, 0, '{{}}', 1
FROM generate_series(1, {apps}) AS n
"""
_HISTORY: Final = """
INSERT INTO app_state_history (app_id, version, from_state, to_state, reason, correlation_id, actor, at)
SELECT id, 1, NULL, state, 'generated', correlation_id, created_by, created_at FROM apps
"""


def fill(servers: Servers, database: str, apps: int) -> None:
    """Stores ended apps, each with a row of history."""
    tables = ("apps", "app_state_history")
    servers.execute(database, [_APPS.format(apps=apps), _HISTORY, *(f"VACUUM ANALYZE {name}" for name in tables)])
    servers.execute(database, ["CHECKPOINT"])


@dataclass(frozen=True, slots=True)
class Listed:
    """One kind of list: how long it took, and how many items the last answer had."""

    name: str
    items: int
    latency: Spread


def lists(apps: int) -> dict[str, dict[str, str | list[str]]]:
    """Every filter alone, for many and for few, and state with createdBy; sorted by default."""
    middle, first = (f"{FIRST + timedelta(seconds=after):%Y-%m-%dT%H:%M:%SZ}" for after in (apps // 2, 300))
    return {
        "all": {},
        "state: nearly all": {"state": "COMPLETED"},
        "state: few, all old": {"state": "FAILED"},
        "state: none": {"state": "REGISTERING"},
        "two states, few, all old": {"state": ["FAILED", "REGISTERING"]},
        "createdBy: a third": {"createdBy": "steady"},
        "createdBy: few": {"createdBy": "rare"},
        "createdBy: nobody": {"createdBy": "nobody"},
        "createdAfter: half": {"createdAfter": middle},
        "createdBefore: half": {"createdBefore": middle},
        "createdBefore: few": {"createdBefore": first},
        "q: all": {"q": "app-"},
        "q: a tenth, all old": {"q": f"app-{'0' * (7 - len(str(apps - 1)))}0"},
        "q: a hundredth, all old": {"q": f"app-{'0' * (7 - len(str(apps - 1)))}00"},
        "q: one": {"q": "app-0000042"},
        "q: none": {"q": "zebra"},
        "state and createdBy: a third": {"state": "COMPLETED", "createdBy": "steady"},
        "state and createdBy: none of many": {"state": "FAILED", "createdBy": "steady"},
        "state and createdBy: few": {"state": "FAILED", "createdBy": "rare"},
        "states and createdBy: none of many": {"state": ["FAILED", "REGISTERING"], "createdBy": "steady"},
    }


def listed(one: Product, apps: int, times: int) -> Iterator[Listed]:
    """Each list `times` times, one request after the other."""
    for name, query in lists(apps).items():
        path = f"/apps?{urlencode(query, doseq=True)}"
        answer = one.get([path] * times)
        yield Listed(name, answer["items"], spread(answer["ms"]))
