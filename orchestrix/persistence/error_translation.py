"""Error translation: the error of `orchestrix.errors` for each error of a driver."""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError, PendingRollbackError, ResourceClosedError, StatementError
from sqlalchemy.exc import TimeoutError as NoFreeConnection

from orchestrix.errors import (
    ConflictError,
    Contention,
    Invalid,
    OrchestrixError,
    OutcomeUnknown,
    PermanentError,
    SchemaMismatch,
    Unavailable,
)
from orchestrix.persistence.dialects import Dialect

_UPGRADE = "the database schema does not fit this version; run: orchestrix db upgrade"


def translated(error: Exception, dialect: Dialect, *, committing: bool = False) -> Exception:
    """The error of `orchestrix.errors` for a driver's one; what is no driver's error comes back as it is.

    `committing` says that COMMIT was on its way: a connection lost then leaves the outcome open.
    """
    if isinstance(error, OrchestrixError):
        return error
    if isinstance(error, DBAPIError) and (refusal := dialect.refusal(error)):
        return Unavailable(refusal)
    found = _found(error, dialect)
    if found is None:
        return error
    if committing and type(found) is Unavailable:
        return OutcomeUnknown(f"the commit was not confirmed: {found}")
    return found


def _found(error: Exception, dialect: Dialect) -> OrchestrixError | None:
    if isinstance(error, NoFreeConnection):
        return Unavailable("no database connection became free in time")
    if isinstance(error, TimeoutError):
        return Unavailable("the database did not answer in time")
    if isinstance(error, DBAPIError):
        return _driver(error, dialect)
    if isinstance(error, PendingRollbackError | ResourceClosedError):
        return Unavailable("the connection to the database was lost")
    if isinstance(error, StatementError | UnicodeError):
        return Invalid(f"the database rejected this value: {_line(error)}")
    if isinstance(error, OSError | EOFError):
        return Unavailable(f"cannot connect to the database: {_line(error)}")
    return None


def _driver(error: DBAPIError, dialect: Dialect) -> OrchestrixError:
    text = _line(error.orig or error)
    meaning = Unavailable if error.connection_invalidated else dialect.meaning(error) or Unavailable
    if meaning is SchemaMismatch:
        return SchemaMismatch(f"{_UPGRADE} ({text})")
    if meaning is Unavailable:
        return Unavailable(f"the database is unavailable: {text}")
    if meaning is ConflictError:
        return ConflictError(f"concurrent update: {text}")
    if meaning is Contention:
        return Contention(f"another transaction was in the way; nothing was changed: {text}")
    return meaning(f"the database rejected it: {text}") if meaning in (PermanentError, Invalid) else meaning(text)


def _line(error: BaseException) -> str:
    """The first line of what the driver says: the rest quotes SQL and values."""
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
