"""Is every kind of difference between a database and this version told in a sentence?"""

from __future__ import annotations

import pytest
from sqlalchemy import (
    Column,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    create_engine,
    text,
)

from orchestrix.persistence import tables
from orchestrix.persistence.schema import migrator


@pytest.fixture
def made() -> MetaData:
    """What the database is said to expect, in the place of our own tables."""
    metadata = MetaData()
    Table("parents", metadata, Column("id", Integer, primary_key=True))
    Table(
        "things",
        metadata,
        Column("id", Integer, primary_key=True),
        Column("parent", Integer, ForeignKey("parents.id")),
        Column("name", String(20), nullable=False),
        Column("gone", Integer),
        UniqueConstraint("name", name="u_name"),
        Index("i_gone", "gone"),
    )
    return metadata


def test_each_difference_is_a_sentence(made: MetaData, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "metadata", made)
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        for statement in (
            "CREATE TABLE parents (id INTEGER NOT NULL PRIMARY KEY)",
            "CREATE TABLE things (id INTEGER NOT NULL PRIMARY KEY, parent INTEGER, name INTEGER, foo INTEGER)",
            "CREATE INDEX i_foo ON things (foo)",
            "CREATE TABLE strangers (id INTEGER)",
        ):
            connection.execute(text(statement))
        found = sorted(migrator.differences(connection))
    engine.dispose()
    assert found == [
        "column things.foo is in the database and not in this version",
        "column things.gone is in this version and not in the database",
        "column things.name has the type INTEGER in the database and has the type VARCHAR(20) in this version",
        "column things.name may be null in the database and must not be null in this version",
        "constraint things.u_name is in this version and not in the database",
        "foreign key things.parent is in this version and not in the database",
        "index things.i_foo is in the database and not in this version",
        "index things.i_gone is in this version and not in the database",
        "table strangers is in the database and not in this version",
    ]
