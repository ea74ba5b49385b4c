"""Instance pages: the queries that find the instances of one page of a list."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from sqlalchemy import FromClause, Select, and_, func, or_, select, true, union_all
from sqlalchemy.sql import ColumnElement

from orchestrix.errors import Invalid
from orchestrix.persistence.engine import Connection
from orchestrix.persistence.jobs.blocked_job_steps import without_worker
from orchestrix.persistence.sagas import stuck_filter
from orchestrix.persistence.sagas.saga_tables import SagaTables
from orchestrix.persistence.sagas.stuck_filter import NO_BLOCKERS, ExternalBlockers
from orchestrix.persistence.tables import jobs
from orchestrix.saga.definition import TERMINAL
from orchestrix.saga.state import Instance

_LAST: Final = 0x10FFFF
_SURROGATES: Final = range(0xD800, 0xE000)
_SORTS: Final = {"createdAt": "created_at", "updatedAt": "updated_at"}

SHORT_SCAN_ROWS: Final = 500
"""So many of the first rows are scanned for a prefix, or what is stuck, before anything else is tried."""
LONG_SCAN_ROWS: Final = 30_000
"""So many of them if the prefix is that of many names, or if many are stuck."""
NAME_INDEX_SCAN_LIMIT: Final = 150_000
"""Up to so many names are scanned quickly by their own index, wherever in the order their rows are."""

After = tuple[datetime | str, int]


@dataclass(frozen=True, slots=True)
class InstanceFilter:
    """What the instances of a list have in common. The bounds themselves are not included; no field set means all.

    The stuck ones are live, and wait for a person, for the broker, or for workers that are not there. Those that are
    `blockers` are among them.
    """

    states: Sequence[str] = ()
    created_by: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    prefix: str | None = None
    stuck: bool | None = None
    blockers: ExternalBlockers = NO_BLOCKERS


@dataclass(frozen=True, slots=True)
class InstanceOrder:
    """By `column` and, among equals, by `id`; from behind `after` on."""

    column: ColumnElement[Any]
    id: ColumnElement[int]
    descends: bool
    after: After | None = None

    def on(self, rows: FromClause) -> InstanceOrder:
        """The same order of rows that were cut by it already, and have those columns."""
        return InstanceOrder(rows.c[str(self.column.key)], rows.c[str(self.id.key)], self.descends)

    def unindexed(self) -> InstanceOrder:
        """The same order, but not one that an index of the column could give."""
        return replace(self, column=func.coalesce(self.column, self.column))

    def first(self, query: Select[Any], limit: int) -> Select[Any]:
        """The first rows of `query` in this order."""
        by = (self.column, self.id)
        query = query.order_by(*(one.desc() for one in by) if self.descends else by).limit(limit)
        return query if self.after is None else query.where(_after(self, self.after))


async def queries(
    connection: Connection,
    pair: SagaTables,
    saga: str,
    filters: InstanceFilter,
    by: InstanceOrder,
    rows: Select[Any],
    limit: int,
) -> AsyncIterator[Select[Any]]:
    """The first of `rows` that fit the filter, by one query or, if that did not find `limit` rows, by the next one.

    A planner believes names and times to be independent. Asked for old names it walks the times and passes a million
    rows in vain; so a prefix is looked for among the first rows of the order, then by its own index alone. Both are
    walked without the rows themselves, which are fetched for what is found. So is what is stuck, where it is much.
    Slow is only a prefix of very many names, or what is blocked in very many cases, whose rows are all far from the
    first.
    """
    if filters.stuck:
        if filters.blockers.many and by.column.key == "created_at" and not filters.prefix:
            yield _joined(
                pair, by, rows, _stuck_among_first(connection, pair, saga, filters, by, limit, SHORT_SCAN_ROWS), limit
            )
            if await _exceed_first_rows(connection, pair, filters.blockers):
                yield _joined(
                    pair,
                    by,
                    rows,
                    _stuck_among_first(connection, pair, saga, filters, by, limit, LONG_SCAN_ROWS),
                    limit,
                )
        yield _stuck_by_state(connection, pair, saga, filters, by, rows, limit)
        return
    if not filters.prefix or by.column.key == pair.key:
        yield _by_state(connection, pair, saga, filters, by, rows, limit)
        return
    if by.column.key == "created_at":  # no index has the order of another column: its first rows cost as much as all
        yield _joined(pair, by, rows, _among_first(connection, pair, saga, filters, by, limit, SHORT_SCAN_ROWS), limit)
        if await _are_many(connection, pair, saga, filters.prefix):
            yield _joined(
                pair, by, rows, _among_first(connection, pair, saga, filters, by, limit, LONG_SCAN_ROWS), limit
            )
    yield _joined(pair, by, rows, _by_name(connection, pair, saga, filters, by, limit), limit)


def stuck_of_all(
    connection: Connection,
    pair: SagaTables,
    filters: Mapping[str, InstanceFilter],
    by: InstanceOrder,
    rows: Select[Any],
    limit: int,
) -> Select[Any]:
    """The first of `rows` that are stuck and fit the filter of their saga, of all these sagas by one query."""
    each = [_stuck_by_state(connection, pair, saga, filters[saga], by, rows, limit) for saga in sorted(filters)]
    return _first_of(by, each, limit)


def _joined(pair: SagaTables, by: InstanceOrder, rows: Select[Any], found: Select[Any], limit: int) -> Select[Any]:
    """Those of `rows` whose ids were found."""
    ids = found.subquery()
    return replace(by, after=None).first(rows.join(ids, pair.instances.c.id == ids.c.id), limit)


def _among_first(
    connection: Connection,
    pair: SagaTables,
    saga: str,
    filters: InstanceFilter,
    by: InstanceOrder,
    limit: int,
    window: int,
) -> Select[Any]:
    """The ids of what fits among the first `window` rows that fit but for the prefix."""
    table = pair.instances.c
    narrow = select(table.id, by.column, table[pair.key])
    near = _by_state(connection, pair, saga, replace(filters, prefix=None), by, narrow, window).subquery()
    return (
        by.on(near).first(select(near.c.id), limit).where(*begins(connection, near.c[pair.key], filters.prefix or ""))
    )


def _stuck_among_first(
    connection: Connection,
    pair: SagaTables,
    saga: str,
    filters: InstanceFilter,
    by: InstanceOrder,
    limit: int,
    window: int,
) -> Select[Any]:
    """The ids of what is stuck among the first `window` rows that fit otherwise."""
    table = pair.instances.c
    columns = [table[name] for name in ("state", "blocker", "wake_reason", "wake_at", "command_id", "hindered_by")]
    narrow = select(table.id, by.column, *columns)
    near = _by_state(connection, pair, saga, replace(filters, stuck=None), by, narrow, window).subquery()
    return by.on(near).first(select(near.c.id), limit).where(*stuck_filter.stuck(connection, near.c, filters.blockers))


async def _are_many(connection: Connection, pair: SagaTables, saga: str, prefix: str) -> bool:
    """Whether more than `NAME_INDEX_SCAN_LIMIT` names seem to begin so."""
    names = select(pair.instances.c[pair.key]).where(
        *_conditions(connection, pair, saga, InstanceFilter(prefix=prefix))
    )
    return await _exceeds(connection, names, NAME_INDEX_SCAN_LIMIT)


async def _exceed_first_rows(connection: Connection, pair: SagaTables, hindered: ExternalBlockers) -> bool:
    """Whether more rows, or jobs, seem to be such than a look among the first rows would pass."""
    table = pair.instances.c
    kinds = [] if hindered.overdue_since is None else [select(table.id).where(table.wake_at <= hindered.overdue_since)]
    kinds += (
        [] if hindered.unserved_jobs is None else [select(jobs.c.id).where(*without_worker(hindered.unserved_jobs))]
    )
    return any([await _exceeds(connection, kind, LONG_SCAN_ROWS) for kind in kinds])


async def _exceeds(connection: Connection, rows: Select[Any], count: int) -> bool:
    about = await connection.dialect.about(connection, rows)
    return about is None or about > count


def _by_name(
    connection: Connection, pair: SagaTables, saga: str, filters: InstanceFilter, by: InstanceOrder, limit: int
) -> Select[Any]:
    """The ids of what fits, by the index of the names.

    Names often grow with time. Read in the direction of the order, the first ones are then those to keep; the other way
    round each of them would take the place of one that was kept.
    """
    key = pair.instances.c[pair.key]
    fitting = select(pair.instances.c.id, by.column).where(*_conditions(connection, pair, saga, filters))
    if by.after is not None:
        fitting = fitting.where(_after(by, by.after))
    names = fitting.order_by(key.desc() if by.descends else key).subquery()
    return by.on(names).unindexed().first(select(names.c.id), limit)


def _by_state(
    connection: Connection,
    pair: SagaTables,
    saga: str,
    filters: InstanceFilter,
    by: InstanceOrder,
    rows: Select[Any],
    limit: int,
) -> Select[Any]:
    """An index has the order within one state alone: each state is a query of its own."""
    each = [rows.where(*_conditions(connection, pair, saga, one)) for one in _each_state(filters)]
    return _first_of(by, [by.first(one, limit) for one in each], limit)


def _stuck_by_state(
    connection: Connection,
    pair: SagaTables,
    saga: str,
    filters: InstanceFilter,
    by: InstanceOrder,
    rows: Select[Any],
    limit: int,
) -> Select[Any]:
    """Those whose rows say so, and those that are blocked from outside: each kind is found by an index of its own."""
    # MySQL has no index on the stuck alone: it looks through all that are live, and through nothing else.
    live = _forced(pair, rows, f"{'' if pair.saga else 'saga_'}state_created_at_id")
    table, hindered = pair.instances.c, filters.blockers
    each = []
    for one in _each_state(filters):
        each.append(by.first(live.where(*_conditions(connection, pair, saga, one)), limit))
        plain = replace(one, stuck=None)
        fitting = live.where(*_conditions(connection, pair, saga, plain))
        each.append(by.unindexed().first(_hindered(connection, pair, saga, plain, live), limit))
        each += [
            by.first(fitting.where(*which), limit) for which in stuck_filter.in_states(connection, table, hindered)
        ]
        hidden = _conditions(connection, pair, saga, plain, hidden=True)
        others = _blocked_by_index(connection, pair, hindered, rows)
        each += [by.unindexed().first(query.where(*hidden), limit) for query in others]
    return _first_of(by, each, limit)


def _hindered(
    connection: Connection, pair: SagaTables, saga: str, filters: InstanceFilter, live: Select[Any]
) -> Select[Any]:
    """Those whose queue has no consumer: the index on them alone, where there is one, is to be used and no other."""
    whole = connection.dialect.name == "mysql"
    found = live.where(*_conditions(connection, pair, saga, filters, hidden=not whole))
    table = pair.instances.c
    waiting = found.where(*stuck_filter.hindered_by_queue(table))
    return waiting.where(table.state.not_in(sorted(TERMINAL))) if whole else waiting


def _blocked_by_index(
    connection: Connection, pair: SagaTables, hindered: ExternalBlockers, rows: Select[Any]
) -> list[Select[Any]]:
    """Those of `rows` that are blocked whatever their state, each kind by its own index."""
    table, found = pair.instances.c, []
    if hindered.ids:
        found.append(rows.where(*stuck_filter.by_id(connection, table, hindered)))
    if hindered.overdue_since is not None:
        late = _forced(pair, rows, "wake_at")
        found.append(late.where(*stuck_filter.by_wake_up(connection, table, hindered)))
    if hindered.unserved_jobs is not None:
        found.append(rows.join(jobs, true()).where(*stuck_filter.by_job(connection, table, hindered)))
    return found


def _forced(pair: SagaTables, rows: Select[Any], index: str) -> Select[Any]:
    return rows.with_hint(pair.instances, f"FORCE INDEX (ix_{pair.instances.name}_{index})", "mysql")


def _each_state(filters: InstanceFilter) -> list[InstanceFilter]:
    return [replace(filters, states=[state]) for state in sorted(set(filters.states))] or [filters]


def _first_of(by: InstanceOrder, queries: Sequence[Select[Any]], limit: int) -> Select[Any]:
    """The first rows of all these queries, which have none in common, and are cut already."""
    if len(queries) == 1:
        return queries[0]
    every = union_all(*(select(query.subquery()) for query in queries)).subquery()
    return by.on(every).first(select(every), limit)


def _conditions(
    connection: Connection, pair: SagaTables, saga: str, filters: InstanceFilter, *, hidden: bool = False
) -> list[ColumnElement[bool]]:
    """The conditions for a row. `hidden` is the condition from the planner where it is not to use an index for it."""

    def visible(column: Any, hidden: bool = hidden) -> Any:
        return func.coalesce(column, column) if hidden else column

    table, few = pair.instances.c, hidden or bool(filters.stuck)  # no planner knows how few those are
    found: list[ColumnElement[bool]] = [] if pair.saga else [visible(table.saga) == saga]
    if filters.states:
        found.append(visible(table.state).in_(sorted(set(filters.states))))
    if filters.created_by is not None:
        found.append(visible(table.created_by, few) == filters.created_by)
    if filters.created_after is not None:
        found.append(visible(table.created_at) > filters.created_after)
    if filters.created_before is not None:
        found.append(visible(table.created_at) < filters.created_before)
    if filters.stuck:
        found.extend(stuck_filter.stuck_by_row(table))
    elif filters.stuck is not None:
        found.extend(stuck_filter.moving(connection, table, filters.blockers))
    if filters.prefix:
        found.extend(begins(connection, visible(table[pair.key], few), filters.prefix))
    return found


def order(pair: SagaTables, sort: str, after: After | None = None) -> InstanceOrder:
    """What `sort` says; raises `Invalid` for an unknown one."""
    name = sort.removeprefix("-")
    column = pair.key if name in ("appName", "key") else _SORTS.get(name)
    if column is None:
        raise Invalid(f"sort: {name!r} is not one of createdAt, updatedAt, {'appName' if pair.saga else 'key'}")
    return InstanceOrder(pair.instances.c[column], pair.instances.c.id, sort.startswith("-"), after)


def _after(by: InstanceOrder, after: After) -> ColumnElement[bool]:
    column, (value, last) = by.column, after
    if by.descends:
        return and_(column <= value, or_(column < value, by.id < last))
    return and_(column >= value, or_(column > value, by.id > last))


def sort_value(sort: str, instance: Instance) -> datetime | str:
    """What `instance` is sorted by: the first half of `after` for the page behind it."""
    return {"createdAt": instance.created_at, "updatedAt": instance.updated_at}.get(
        sort.removeprefix("-"), instance.key
    )


def begins(connection: Connection, column: ColumnElement[str], prefix: str) -> list[ColumnElement[bool]]:
    # A range and not LIKE: LIKE knows no case on SQLite, has wildcards, and cannot always use the index.
    bound = _successor(prefix)
    upper = [column < bound] if bound else []
    return [column >= prefix, *upper, *connection.dialect.begins_with(column, prefix)]


def _successor(prefix: str) -> str | None:
    """The least text that is greater than all that begin with `prefix`; None if there is none."""
    letters = prefix.rstrip(chr(_LAST))
    if not letters:
        return None
    following = ord(letters[-1]) + 1
    return letters[:-1] + chr(_SURROGATES.stop if following in _SURROGATES else following)
