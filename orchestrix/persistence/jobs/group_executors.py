"""Group executors: what the database knows of the executors of a group, for who explains why its jobs wait."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import func, select

from orchestrix.domain.job_diagnosis import DISPATCH_GRACE, GroupExecutors
from orchestrix.domain.jobs import DISPATCHED, LIVE
from orchestrix.persistence.engine import Connection
from orchestrix.persistence.jobs import job_predicates
from orchestrix.persistence.registry.groups import addresses_of
from orchestrix.persistence.tables import job_group, jobs


async def of_groups(connection: Connection, groups: Collection[str]) -> dict[str, GroupExecutors]:
    """The executors of each of these groups, and how many attempts they have; of one that is not there, that."""
    wanted = sorted(set(groups))
    if not wanted:
        return {}
    table, group = jobs.c, job_group.c
    live = table.state.in_(LIVE), table.channels == 1, table.address.is_not(None)
    counted = (
        select(table.executor_group, table.address, func.count().label("attempts"))
        .where(connection.dialect.among(table.executor_group, wanted), *live)
        .group_by(table.executor_group, table.address)
        .subquery()
    )
    query = select(group.app_name, group.address_list, counted.c.address, counted.c.attempts)
    query = query.select_from(job_group.outerjoin(counted, counted.c.executor_group == group.app_name))
    lists, attempts = dict[str, str](), dict[str, dict[str, int]]()
    for name, addresses, address, count in await connection.execute(
        query.where(connection.dialect.among(group.app_name, wanted))
    ):
        lists[name] = addresses
        attempts.setdefault(name, {}).update({} if address is None else {address: int(count)})
    return {
        name: GroupExecutors(addresses_of(lists[name]), attempts[name]) if name in lists else GroupExecutors(None)
        for name in wanted
    }


async def not_started_counts(connection: Connection) -> dict[str, int]:
    """How many attempts for each group were dispatched a while ago, and no executor has begun them."""
    long_ago = job_predicates.ago(connection, DISPATCH_GRACE.total_seconds())
    query = select(jobs.c.executor_group, func.count())
    query = query.where(
        jobs.c.state == DISPATCHED, jobs.c.executor_group.is_not(None), jobs.c.dispatched_at <= long_ago
    )
    found = await connection.execute(query.group_by(jobs.c.executor_group))
    return {str(group): int(count) for group, count in found}
