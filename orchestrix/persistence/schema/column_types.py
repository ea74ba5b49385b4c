"""Column types: times, texts, JSON and ids that come out of every database as they went in."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import JSON, BigInteger, DateTime, Dialect, Integer, String
from sqlalchemy.dialects.mysql import DATETIME, LONGBLOB, LONGTEXT
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import LargeBinary, TypeDecorator

from orchestrix.saga.messages import compact

CHARSET: Final = "utf8mb4"
COLLATION: Final = "utf8mb4_bin"
"""How MySQL and MariaDB keep and compare all text of ours, whatever a server or a database has as its default."""
POSTGRESQL_COLLATION: Final = "C"


class UtcTime(TypeDecorator[datetime]):
    """A moment in UTC to the microsecond. Refuses times without a zone; gives back times in UTC."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> Any:
        return dialect.type_descriptor(DATETIME(fsp=6) if dialect.name == "mysql" else DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a stored time needs a zone")
        utc = value.astimezone(UTC)
        return utc if dialect.name == "postgresql" else utc.replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def Name(length: int) -> Any:
    """Text that is compared code point by code point on every database."""
    return String(length).with_variant(String(length, collation=POSTGRESQL_COLLATION), "postgresql")


class Json(TypeDecorator[Any]):
    """JSON that comes out as it went in. Text on MySQL, whose own type turns whole numbers over 64 bits to floats."""

    impl = JSON
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> Any:
        if dialect.name == "mysql":
            return dialect.type_descriptor(LONGTEXT(charset=CHARSET, collation=COLLATION))
        return dialect.type_descriptor((JSONB if dialect.name == "postgresql" else JSON)(none_as_null=True))

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        if value is None or dialect.name != "mysql":
            return value
        return compact(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return json.loads(value) if value is not None and dialect.name == "mysql" else value


BigId = BigInteger().with_variant(Integer, "sqlite")
Body = LargeBinary().with_variant(LONGBLOB, "mysql")
