"""Shard settings: how members of services of shards are watched, and how long changes of them are gathered."""

from __future__ import annotations

import re
from ipaddress import ip_address
from pathlib import Path
from typing import Final, Literal

from pydantic import Field, field_validator, model_validator

from orchestrix.config.groups import Seconds, SettingsGroup

_HOST: Final = re.compile(r"(?:tcp://)?(\*|[A-Za-z0-9][A-Za-z0-9._-]{0,252}|\[[0-9A-Fa-f:.]+\])")


class ShardsSettings(SettingsGroup):
    """How services of shards are coordinated, in seconds.

    Changes within one `window` share a generation. A member is inactive without a heartbeat for `heartbeat_timeout`,
    which is looked at every `check`. `plain` is how clients are trusted that know no generations: `protect` gives no
    shard to another that one still reports, `push` does. `allocation` is by which rule shards are divided: `even` is
    S1's, `minimal` moves as few as can be and knows weights. The node that leads a change decides, and what it has
    decided is stored: so nodes may have different ones while it is changed.

    `zmq` opens a ZeroMQ socket for such clients on `zmq_host` and `zmq_port`. Beyond this machine that needs CURVE:
    `zmq_server_key` is the file with the server's keys, `zmq_client_keys` the folder with the public keys of clients.
    With the `zmq_auth` "none" anyone who can reach the socket can use it.
    """

    window: Seconds = 2.0
    heartbeat_timeout: Seconds = 15.0
    check: Seconds = 5.0
    plain: Literal["protect", "push"] = "protect"
    allocation: Literal["even", "minimal"] = "even"
    zmq: bool = False
    zmq_host: str = "tcp://0.0.0.0"
    zmq_port: int = Field(5555, ge=0, le=65535)
    zmq_auth: Literal["curve", "none"] = "curve"
    zmq_server_key: Path | None = None
    zmq_client_keys: Path | None = None

    @field_validator("zmq_host")
    @classmethod
    def _is_host(cls, value: str) -> str:
        found = _HOST.fullmatch(value)
        if found is None:
            raise ValueError("write tcp:// and an address of this machine without a port, e.g. tcp://127.0.0.1")
        return f"tcp://{found[1]}"

    @field_validator("zmq_server_key", "zmq_client_keys", mode="before")
    @classmethod
    def _given(cls, value: object) -> object:
        return None if value == "" else value

    @model_validator(mode="after")
    def _consistent(self) -> ShardsSettings:
        if self.check * 3 > self.heartbeat_timeout * 2:  # 10 s of 15 s fit, as clients of S1 know them
            raise ValueError(
                f"shards.check ({self.check:g}) must be at most two thirds of shards.heartbeat_timeout "
                f"({self.heartbeat_timeout:g}), or shards would stay too long with members that are gone: "
                "lower the first or raise the second"
            )
        if (self.zmq_server_key is None) != (self.zmq_client_keys is None):
            raise ValueError(
                "shards.zmq_server_key and shards.zmq_client_keys need each other: set both, the first to the file "
                "with the server's keys, the second to the folder with the public keys of clients"
            )
        if self.zmq_auth == "none" and self.zmq_server_key is not None:
            raise ValueError("shards.zmq_server_key is set, but shards.zmq_auth is none: unset one of them")
        return self

    @property
    def zmq_endpoint(self) -> str:
        """Where the ZeroMQ socket listens."""
        return f"{self.zmq_host}:{self.zmq_port}"

    @property
    def zmq_is_open(self) -> bool:
        """Whether anyone beyond this machine could use the ZeroMQ socket, and no setting says that this is meant."""
        return self.zmq_server_key is None and self.zmq_auth != "none" and not _is_loopback(self.zmq_host)


def _is_loopback(host: str) -> bool:
    name = host.removeprefix("tcp://").strip("[]")
    try:
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False  # a name can mean anything
