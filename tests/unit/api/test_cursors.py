"""Does a cursor lead back to the very place it was made for, and to no other?"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from datetime import UTC, datetime, timedelta
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrix.api import pagination as cursors
from orchestrix.api.problems import Problem

IDS = st.integers(0, 2**53 - 1)
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=200)
TIMES = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)).map(lambda time: time.replace(tzinfo=UTC))


@given(NAMES, IDS)
def test_a_name_comes_back(name: str, last_id: int) -> None:
    assert cursors.decode("appName", cursors.encode("appName", name, last_id), str) == (name, last_id)


@given(TIMES, IDS)
def test_a_time_comes_back_to_the_microsecond(time: datetime, last_id: int) -> None:
    assert cursors.decode("-createdAt", cursors.encode("-createdAt", time, last_id), datetime) == (time, last_id)


@given(IDS, IDS)
def test_a_version_comes_back(version: int, last_id: int) -> None:
    assert cursors.decode("version", cursors.encode("version", version, last_id), int) == (version, last_id)


@given(NAMES, IDS)
def test_a_cursor_is_fit_for_a_url(name: str, last_id: int) -> None:
    assert cursors.encode("appName", name, last_id).replace("-", "").replace("_", "").isalnum()


@given(st.text(max_size=300) | st.binary(max_size=200).map(lambda raw: urlsafe_b64encode(raw).decode()))
def test_rubbish_is_refused(text: str) -> None:
    with pytest.raises(Problem) as refused:
        cursors.decode("appName", text, str)
    assert (refused.value.status, refused.value.members["parameter"]) == (400, "cursor")


@given(st.data(), NAMES, IDS)
def test_a_changed_letter_is_noticed(data: st.DataObject, name: str, last_id: int) -> None:
    cursor = cursors.encode("appName", name, last_id)
    place = data.draw(st.integers(0, len(cursor) - 1))
    letter = data.draw(st.sampled_from([one for one in "AZaz09-_ =." if one != cursor[place]]))
    with pytest.raises(Problem):
        cursors.decode("appName", cursor[:place] + letter + cursor[place + 1 :], str)


def test_a_cursor_of_another_order_is_refused() -> None:
    cursor = cursors.encode("-createdAt", datetime(2026, 1, 31, tzinfo=UTC), 7)
    with pytest.raises(Problem, match="another order"):
        cursors.decode("createdAt", cursor, datetime)


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"{}",
        b'["appName","x"]',
        b'["appName",1,7]',
        b'["appName",null,7]',
        b'["appName","x",-1]',
        b'["appName","x",true]',
        b'["appName","x",9007199254740992]',
        b'["appName","\\ud800",7]',
        b'["appName","\\u0000",7]',
        b"[" * 5000,
    ],
)
def test_a_well_made_cursor_with_wrong_insides_is_refused(body: bytes) -> None:
    cursor = urlsafe_b64encode(crc32(body).to_bytes(4, "big") + body).decode().rstrip("=")
    with pytest.raises(Problem):
        cursors.decode("appName", cursor, str)


@pytest.mark.parametrize("time", ["yesterday", "0001-01-01T00:00:00+23:00", "", "2026-13-01T00:00:00+00:00"])
def test_a_time_that_is_none_is_refused(time: str) -> None:
    with pytest.raises(Problem):
        cursors.decode("createdAt", cursors.encode("createdAt", time, 1), datetime)


def test_a_time_of_another_zone_is_the_same_moment() -> None:
    time = datetime(2026, 1, 31, 12, tzinfo=UTC)
    with_zone = (time + timedelta(hours=1)).replace(tzinfo=None).isoformat() + "+01:00"
    assert cursors.decode("createdAt", cursors.encode("createdAt", with_zone, 1), datetime) == (time, 1)
