"""Does a connection wait for another that writes to a file which has no write-ahead log yet?"""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

from sqlalchemy import text

from orchestrix.persistence.engine import Database


async def test_a_new_connection_waits_for_a_writer_of_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    writer = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    writer.execute("CREATE TABLE one (x)")
    writer.execute("BEGIN IMMEDIATE")
    release = threading.Timer(0.05, writer.commit)
    release.start()
    database = Database(f"sqlite+aiosqlite:///{path}")
    try:
        async with database.read() as connection:
            mode = (await connection.execute(text("PRAGMA journal_mode"))).scalar_one()
    finally:
        await database.close()
        release.join()
        writer.close()
    assert mode == "wal"
