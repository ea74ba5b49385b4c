"""Commands `registry`: who runs the jobs of an app, and which executor each strategy would pick."""

from __future__ import annotations

from typing import Final

from orchestrix.cli.nouns.options import PAGE, REASON, STRATEGIES
from orchestrix.cli.syntax.declarations import CommandGroup, OneOf, ShellCommand, option
from orchestrix.cli.syntax.parsing import whole

PICKS: Final = 1, 10_000
_ABOUT: Final = "the app, as `registry list` shows it"
_APP = option("app", _ABOUT, "APP")
_OF_APP = option("app", _ABOUT, "APP", "?app")
_ADDRESS: Final = "http://host:port or https://host:port"
_ADDRESSES = OneOf((
    option("--address", f"MANUAL: an address, as {_ADDRESS}; again for more", "URL",
           "addressList", action="append"),
    option("--auto", "AUTO: the addresses of its registered executors", to="addressType", action="store_const",
           const="AUTO"),
), required=True)  # fmt: skip
_ROUTE = (
    _OF_APP,
    option("--strategy", f"how an executor is picked: {', '.join(STRATEGIES)}", "NAME", "strategy",
           type=str.upper, choices=STRATEGIES, required=True),
    option("--key", "what CONSISTENT_HASH keeps together, as a customer's number", "KEY", "key"),
    option("--address", "for ADDRESS: which one", "URL", "address"),
    option("--count", "show how so many picks are spread, each with a key of its own", "N", "count",
           type=whole(*PICKS)),
)  # fmt: skip
_UNDO = option("--undo", "let it take jobs again", to="drain", action="store_const", const=False)
_ONE: Final = "/registry/groups/{app}"
_RUN: Final = "commands.registry"
REGISTRY: Final = CommandGroup("registry", "executors of apps: who is registered, and which one a strategy picks", (
    ShellCommand("list", "list the apps that have an executor group or executors", "registry list", PAGE,
                 "GET /registry/groups", run=f"{_RUN}:list_groups"),
    ShellCommand("show", "show the executors and the addresses of an app", "registry show shop", (_APP,), f"GET {_ONE}",
                 run=f"{_RUN}:group"),
    ShellCommand("set", "set the addresses of an app's group; makes the group if there is none",
                 "registry set shop --address http://10.0.0.7:9999 --address http://10.0.0.8:9999",
                 (_APP, _ADDRESSES, REASON), f"PUT {_ONE}", run=f"{_RUN}:group"),
    ShellCommand("delete", "delete an app's group; its executors stay registered", "registry delete shop --yes",
                 (_APP, REASON), f"DELETE {_ONE}", run=f"{_RUN}:delete",
                 question="Delete the executor group of {app}? Without one no job is routed to its executors."),
    ShellCommand("route", "show which executor a strategy picks; calls none, but moves the turn of ROUND_ROBIN",
                 "registry route shop --strategy CONSISTENT_HASH --key customer-7", _ROUTE, "POST /registry/route",
                 run=f"{_RUN}:route"),
    ShellCommand("drain", "give an executor no new jobs, until --undo or a new process at its address",
                 "registry drain shop http://10.0.0.7:9999 --reason 'new disk'",
                 (_OF_APP, option("address", f"its address, as {_ADDRESS}", "ADDRESS", "address"), _UNDO, REASON),
                 "POST /registry/drain", run=f"{_RUN}:drain"),
))  # fmt: skip
