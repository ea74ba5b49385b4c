"""Commands `cluster`: the nodes, and who leads."""

from __future__ import annotations

from typing import Final

from orchestrix.cli.syntax.declarations import CommandGroup, ShellCommand, option

CLUSTER: Final = CommandGroup("cluster", "the nodes, and who leads", (
    ShellCommand("status", "the leader, the nodes, the last hand-overs", "cluster status",
            request="GET /cluster", run="commands.control:cluster_status"),
    ShellCommand("drain", "let a node give away its jobs, and take no more", "cluster drain node-1",
            (option("node", "its id, as `cluster status` shows it, or its name", "NODE"),),
            "POST /cluster/nodes/{node}/drain"),
))  # fmt: skip
