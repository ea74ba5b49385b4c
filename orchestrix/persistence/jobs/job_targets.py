"""Job targets: whether a job for a group of executors can be stored: the group is there, and all nodes can judge it."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from typing import Final

from orchestrix.domain.nodes import GROUP_JOBS
from orchestrix.errors import Invalid, RetryableError
from orchestrix.persistence.cluster import nodes
from orchestrix.persistence.engine import Connection
from orchestrix.persistence.registry import groups

_SHOWN: Final = 5
"""Nodes that a sentence names."""


class UnknownGroup(Invalid):
    """No app has this executor group. The message says how to make one."""

    def __init__(self, group: str) -> None:
        super().__init__(
            f"names no executor group: make it with `orchestrix registry set {shlex.quote(group)} --auto`, or use one "
            "of `orchestrix registry list`"
        )
        self.group = group


class MixedVersions(RetryableError):
    """A living node is too old for jobs that are for a group. Nothing was written; it works once they are upgraded.

    `cause` is that without an instruction to send something again.
    """

    def __init__(self, cause: str) -> None:
        super().__init__(f"{cause}, then send this again")
        self.cause = cause


async def check(connection: Connection, wanted: Collection[str]) -> None:
    """Whether jobs for these groups can be stored now; none wanted, nothing is asked.

    To be called in the transaction that stores them. Raises `MixedVersions`, for which the job has to wait, and
    `UnknownGroup`. A group that is deleted later ends its jobs FAILED.
    """
    if not wanted:
        return
    await check_versions(connection)
    known = await groups.known(connection, wanted)
    for group in sorted(wanted):
        if group not in known:
            raise UnknownGroup(group)


async def check_versions(connection: Connection) -> None:
    """Raises `MixedVersions` while a living node cannot judge jobs for groups. Without nodes there is none."""
    old = await nodes.below_feature_level(connection, GROUP_JOBS)
    if not old:
        return
    names = ", ".join(f"{one.name} ({one.version or 'version not known'})" for one in old[:_SHOWN])
    more = f" and {len(old) - _SHOWN} more" if len(old) > _SHOWN else ""
    are = "is too old" if len(old) == 1 else "are too old"
    raise MixedVersions(
        f"jobs for a group of executors need every node to know them, and {names}{more} {are}: upgrade or stop "
        f"{'it' if len(old) == 1 else 'them'}"
    )
