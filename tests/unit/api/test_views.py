"""How are times written?"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from orchestrix.api.answers import moment


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (datetime(2026, 1, 31, 12, tzinfo=UTC), "2026-01-31T12:00:00.000000Z"),
        (datetime(2026, 1, 31, 12, 0, 0, 7, tzinfo=UTC), "2026-01-31T12:00:00.000007Z"),
        (datetime(2026, 1, 31, 12, tzinfo=timezone(timedelta(hours=2))), "2026-01-31T10:00:00.000000Z"),
        (datetime(987, 1, 1, tzinfo=UTC), "0987-01-01T00:00:00.000000Z"),
    ],
)
def test_utc_with_six_digits(value: datetime, text: str) -> None:
    assert moment(value) == text
