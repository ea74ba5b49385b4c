"""Does the local store keep the newest spans within its bounds, and hurt nobody whatever becomes of its file?"""

from __future__ import annotations

import logging
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrix.telemetry.local_store import LocalStore, LocalTraces, StoredSpan

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
MIB = 1024 * 1024


def span(number: int, trace_id: str = TRACE, *, saga: int | None = None, padding: int = 0) -> StoredSpan:
    """The span of that number, by which those of a test are ordered."""
    attributes: dict[str, Any] = {} if saga is None else {"saga.name": "order", "saga.id": saga}
    return StoredSpan(trace_id, number, {"spanId": f"{number:016x}", "attributes": attributes, "x": "x" * padding})


def bytes_of(path: Path) -> int:
    """What the store takes on the disk."""
    return sum(one.stat().st_size for one in path.parent.iterdir())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "traces.db"


def test_spans_come_back_in_the_order_of_their_begin(path: Path) -> None:
    LocalStore(path).write([span(2), span(1), span(3, "0" * 31 + "1")])
    assert [one["spanId"][-1] for one in LocalTraces(path).spans(TRACE)] == ["1", "2"]
    assert LocalTraces(path).spans("0" * 31 + "2") == []


def test_the_traces_of_an_instance_are_found_by_its_spans(path: Path) -> None:
    first, second, other = (f"{number:032x}" for number in (9, 5, 7))
    LocalStore(path).write([span(2, second, saga=1), span(1, first, saga=1), span(3, other, saga=2), span(4, first)])
    assert LocalTraces(path).traces_of("order", 1) == [first, second]
    assert LocalTraces(path).traces_of("app", 1) == []


def test_without_a_file_there_are_no_traces(path: Path) -> None:
    assert LocalTraces(path).spans(TRACE) == []
    assert not path.exists()


def test_only_the_owner_can_read_it(path: Path) -> None:
    former = os.umask(0)
    try:
        LocalStore(path).write([span(1)])
    finally:
        os.umask(former)
    assert {one.stat().st_mode & 0o777 for one in path.parent.iterdir()} == {0o600}
    path.chmod(0o644)
    LocalStore(path).write([span(2)])
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_newest_stay_and_the_file_does_not_grow(path: Path) -> None:
    store = LocalStore(path, 2 * MIB)
    for first in range(0, 6000, 100):
        store.write([span(number, padding=1000) for number in range(first, first + 100)])
        assert bytes_of(path) <= 2 * MIB + 1.5 * MIB
        assert path.stat().st_size <= 2 * MIB
    kept = [int(one["spanId"], 16) for one in LocalTraces(path).spans(TRACE)]
    assert kept == list(range(kept[0], 6000))
    assert len(kept) > 800


def test_a_batch_that_fills_all_of_it_makes_room_for_itself(path: Path) -> None:
    store = LocalStore(path, MIB)
    store.write([span(number, padding=8000) for number in range(100)])
    store.write([span(number, padding=8000) for number in range(100, 150)])
    kept = [int(one["spanId"], 16) for one in LocalTraces(path).spans(TRACE)]
    assert kept[-1] == 149
    assert path.stat().st_size <= MIB
    with pytest.raises(sqlite3.OperationalError, match="full"):
        store.write([span(number, padding=20_000) for number in range(100)])
    store.write([span(1000)])
    assert LocalTraces(path).spans(TRACE)[-1]["spanId"] == f"{1000:016x}"


@pytest.mark.parametrize("content", [b"this is no database, but it is long enough to be looked at" * 100, b"\0" * 8192])
def test_a_damaged_file_is_set_aside_with_one_warning(
    content: bytes, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_bytes(content)
    store = LocalStore(path)
    store.write([span(1)])
    store.write([span(2)])
    assert len(LocalTraces(path).spans(TRACE)) == 2
    assert path.with_name("traces.db.damaged").read_bytes() == content
    assert [one.levelno for one in caplog.records] == [logging.WARNING]
    assert caplog.records[0].exc_info is None


def test_a_file_that_is_damaged_while_it_is_used_is_set_aside(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = LocalStore(path)
    store.write([span(number, padding=500) for number in range(1000)])
    store.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (size - 4096))
    store.write([span(1)])
    assert [one["spanId"][-1] for one in LocalTraces(path).spans(TRACE)] == ["1"]
    assert len(caplog.records) == 1


def test_a_store_of_another_release_is_set_aside(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE spans (x)")
        other.execute("PRAGMA user_version = 7")
    other.close()
    assert LocalTraces(path).spans(TRACE) == []
    LocalStore(path).write([span(1)])
    assert len(LocalTraces(path).spans(TRACE)) == 1


def test_two_writers_of_a_damaged_file_begin_one_new_one(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second = LocalStore(path), LocalStore(path)
    first.write([span(1)])
    second.write([span(2)])
    first.close()
    with sqlite3.connect(path) as third:
        third.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    third.close()
    with path.open("r+b") as file:
        file.write(b"no database" * 1000)
    first.write([span(3)])
    second.write([span(4)])
    assert [one["spanId"][-1] for one in LocalTraces(path).spans(TRACE)] == ["3", "4"]
    assert len(caplog.records) == 1


def test_a_new_file_of_another_process_is_not_set_aside(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, other = LocalStore(path), LocalStore(path)
    insert = LocalStore._insert

    def damaged(self: LocalStore, *rest: Any) -> None:
        monkeypatch.setattr(LocalStore, "_insert", insert)
        os.replace(path, path.with_name("traces.db.damaged"))  # the other one was quicker
        for suffix in ("-wal", "-shm"):
            path.with_name(f"traces.db{suffix}").unlink(missing_ok=True)
        other.write([span(1)])
        error = sqlite3.DatabaseError("database disk image is malformed")
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error

    monkeypatch.setattr(LocalStore, "_insert", damaged)
    store.write([span(2)])
    assert [one["spanId"][-1] for one in LocalTraces(path).spans(TRACE)] == ["1", "2"]


def test_a_file_that_the_user_deletes_is_begun_anew(path: Path) -> None:
    store = LocalStore(path)
    store.write([span(1)])
    for one in path.parent.iterdir():
        one.unlink()
    store.write([span(2)])
    assert [one["spanId"][-1] for one in LocalTraces(path).spans(TRACE)] == ["2"]


def test_a_locked_file_loses_spans_and_nothing_else(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrix.telemetry.local_store.BUSY_TIMEOUT_S", 0.05)
    store = LocalStore(path)
    store.write([span(1)])
    locking = sqlite3.connect(path, isolation_level=None)
    locking.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        store.write([span(2)])
    assert len(LocalTraces(path).spans(TRACE)) == 1
    locking.execute("ROLLBACK")
    locking.close()
    store.write([span(3)])
    assert [one["spanId"][-1] for one in LocalTraces(path).spans(TRACE)] == ["1", "3"]


def test_a_folder_that_is_away_loses_spans_until_it_returns(path: Path) -> None:
    inside = path.parent / "gone" / "traces.db"
    store = LocalStore(inside)
    with pytest.raises(OSError, match="gone"):
        store.write([span(1)])
    inside.parent.mkdir()
    store.write([span(2)])
    assert len(LocalTraces(inside).spans(TRACE)) == 1


_WRITER = """
import sys
from pathlib import Path
from orchestrix.telemetry.local_store import LocalStore, StoredSpan
store, begin = LocalStore(Path(sys.argv[1]), 2 * 1024 * 1024), int(sys.argv[2])
for first in range(begin, begin + 1000, 10):
    store.write([
        StoredSpan(sys.argv[3], number, {"spanId": f"{number:016x}", "attributes": {}, "x": "x" * 200})
        for number in range(first, first + 10)
    ])
"""


def test_two_processes_write_to_one_file(path: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", _WRITER, str(path), str(begin), TRACE]) for begin in (0, 1_000_000)
    ]
    assert [one.wait(60) for one in writers] == [0, 0]
    assert len(LocalTraces(path).spans(TRACE)) == 2000
