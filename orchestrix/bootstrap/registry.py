"""Registry assembly: the parts of a node for the executor registry."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from orchestrix.api.guards.auth import EXECUTORS_OF
from orchestrix.bootstrap.context import API, NodeContext
from orchestrix.domain.registry.addresses import SETTING, AllowList
from orchestrix.errors import ConfigError
from orchestrix.jobs.executors.owner_notifier import OwnerNotifier
from orchestrix.leader_duties import Duty
from orchestrix.lifecycle import Service
from orchestrix.registry.address_check import AddressCheck
from orchestrix.registry.directory import RegistryDirectory
from orchestrix.registry.group_control import GroupControl
from orchestrix.registry.node_listeners import NodeListeners
from orchestrix.registry.reaper import ExecutorReaper
from orchestrix.registry.registrar import Registrar
from orchestrix.registry.router import ExecutorRouter
from orchestrix.registry.services import ExecutorRegistry
from orchestrix.registry.suspects import SuspicionView


def assemble_registry(node: NodeContext, current_id: Callable[[], str | None] = lambda: None) -> ExecutorRegistry:
    """The parts; nothing of them runs yet. `current_id` is this node's present id in the cluster.

    Raises `ConfigError` for an allow list that cannot be read.
    """
    settings, http = node.settings.registry, node.settings.http
    listeners = NodeListeners(node.database, node.name, http.host, http.port)
    return ExecutorRegistry(
        settings,
        Registrar(node.database, notify_owners=OwnerNotifier(node.broker)),
        RegistryDirectory(node.database, settings),
        ExecutorRouter(node.database, lambda: SuspicionView(current_id(), settings.probe)),
        GroupControl(node.database),
        AddressCheck(node.database, _allowed(node), listeners.own, settings.dead),
        listeners,
        {f"{EXECUTORS_OF}{app}": secret.get_secret_value() for app, secret in settings.secrets().items()},
    )


def registry_works(node: NodeContext, registry: ExecutorRegistry) -> list[Service]:
    """What of it runs on a node of these roles."""
    return [registry.listeners, registry.registrar, registry.directory] if API in node.roles else []


def registry_duty(node: NodeContext) -> Duty:
    """What of it the leader does."""
    return partial(ExecutorReaper, node.database, node.settings.registry)


def _allowed(node: NodeContext) -> AllowList:
    """What may be called; a development server calls this machine where nothing is set. Raises `ConfigError`."""
    if node.settings.registry.allow is not None:
        try:
            return AllowList.parse(node.settings.registry.allow)
        except ValueError as wrong:
            raise ConfigError(f"{SETTING}: {wrong}") from None
    return AllowList.loopback() if node.single_process else AllowList()
