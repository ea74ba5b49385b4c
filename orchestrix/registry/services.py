"""Registry services: the parts of the registry that the API calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrix.config.registry import RegistrySettings
from orchestrix.registry.address_check import AddressCheck
from orchestrix.registry.directory import RegistryDirectory
from orchestrix.registry.group_control import GroupControl
from orchestrix.registry.node_listeners import NodeListeners
from orchestrix.registry.registrar import Registrar
from orchestrix.registry.router import ExecutorRouter


@dataclass(frozen=True, slots=True)
class ExecutorRegistry:
    """A node's parts of the registry. `tokens` are the secrets of executors by the names of who has them."""

    settings: RegistrySettings
    registrar: Registrar
    directory: RegistryDirectory
    router: ExecutorRouter
    control: GroupControl
    check: AddressCheck
    listeners: NodeListeners
    tokens: Mapping[str, str] = field(default_factory=dict, repr=False)
