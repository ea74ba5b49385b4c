"""Do engines share what they compile, and only what is the same for them?"""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Select, select
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.sql.compiler import SQLCompiler

from orchestrix.persistence import tables


def question(place: int) -> Select[tuple[int]]:
    """A statement that no other test asks."""
    return select(tables.apps.c.id.label("of_no_other_test")).where(tables.apps.c.version > place).limit(0)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every statement, as it is compiled."""
    seen: list[str] = []
    make = SQLCompiler.__init__

    def noted(compiler: SQLCompiler, *arguments: object, **options: object) -> None:
        make(compiler, *arguments, **options)  # type: ignore[arg-type]
        seen.append(str(compiler))

    monkeypatch.setattr(SQLCompiler, "__init__", noted)
    return seen


async def ask(path: Path, place: int, **options: object) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}", **options)
    async with engine.begin() as connection:
        await connection.run_sync(tables.apps.create, checkfirst=True)
        await connection.execute(question(place))
    await engine.dispose()


async def test_another_engine_need_not_compile_it_again(tmp_path: Path, compiled: list[str]) -> None:
    await ask(tmp_path / "one.db", 1)
    await ask(tmp_path / "two.db", 2)
    assert len([one for one in compiled if "of_no_other_test" in one]) == 1


async def test_one_that_writes_values_another_way_compiles_it_for_itself(tmp_path: Path, compiled: list[str]) -> None:
    await ask(tmp_path / "one.db", 1, json_serializer=repr)
    await ask(tmp_path / "two.db", 2, json_serializer=ascii)
    await ask(tmp_path / "three.db", 3, paramstyle="named")
    assert len([one for one in compiled if "of_no_other_test" in one]) == 3
