"""How does a private RabbitMQ run, and how does a test get a virtual host of its own?"""

from __future__ import annotations

import secrets
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.servers.base import Server
from tests.servers.ports import free_port
from tests.servers.run import CommandFailed, Run, command, environment

_NODE = "orchestrix@localhost"  # never the machine's own name, which may not resolve
_ERLANG = (
    "+S {0}:{0} +sbwt none +sbwtdcpu none +sbwtdio none "  # schedulers that do not spin: other servers run beside it
    "-kernel inet_dist_use_interface {{127,0,0,1}}"
)
# Nothing may raise an alarm because the machine that runs the tests is full or small.
_CONF = """\
listeners.tcp.1 = 127.0.0.1:{port}
disk_free_limit.absolute = 50MB
log.console = false
log.file.level = info
"""


def find() -> Path | None:
    """The folder of `rabbitmq-server` and `rabbitmqctl`, or None.

    Debian's own /usr/sbin/rabbitmq-server is a wrapper that changes to another user and to the machine's data; the
    programs that it calls are taken instead.
    """
    on_path = shutil.which("rabbitmq-server")
    folders = [Path("/usr/lib/rabbitmq/bin"), *([Path(on_path).parent] if on_path else [])]
    return next((f for f in folders if (f / "rabbitmq-server").exists() and (f / "rabbitmqctl").exists()), None)


def amqp_url(port: int, vhost: str, *, host: str = "127.0.0.1", login: str = "guest:guest") -> str:
    """An AMQP address; the virtual host is percent-encoded as the URI specification asks."""
    return f"amqp://{login}@{host}:{port}/{quote(vhost, safe='')}"


def speaks_amqp(port: int) -> bool:
    """Whether a broker answers the AMQP 0-9-1 protocol header with its first method frame."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as link:
            link.sendall(b"AMQP\x00\x00\x09\x01")
            return link.recv(1) == b"\x01"
    except OSError:
        return False


class RabbitServer(Server):
    """RabbitMQ without plugins, with an epmd and a cookie of its own. User `guest`, password `guest`."""

    kind = "rabbitmq"
    user = "rabbitmq"
    schedulers = 1
    """Threads that run its code: for the few messages of tests two of them need twice the processor's time."""

    def __init__(self, binaries: Path, run: Run) -> None:
        super().__init__(run)
        self._binaries = binaries
        self._epmd_port = free_port()
        self._dist_port = free_port()
        self._epmd: subprocess.Popen[bytes] | None = None

    def url(self, vhost: str = "/") -> str:
        """The AMQP address of a virtual host."""
        return amqp_url(self.port, vhost)

    def eval(self, expression: str) -> str:
        """Evaluates an Erlang expression (without the final dot) in the node; a few ms. Raises CommandFailed.

        By the program that comes with Erlang: `rabbitmqctl` would start a whole Erlang for it.
        """
        program = shutil.which("erl_call", path=self.env()["PATH"])
        if program is None:
            return self.ctl("eval", expression + ".")
        cookie = (self.home / ".erlang.cookie").read_text()
        name = f"tests_{secrets.token_hex(6)}"  # two of one name at once, as by its own -r, and one is turned away
        asked = [program, "-h", name, "-c", cookie, "-address", f"127.0.0.1:{self._dist_port}", "-e"]
        told = command(asked, env=self.env(), cwd=self.home, account=self.account, text=expression + ".\n")
        if not told.startswith("{ok, "):
            raise CommandFailed(f"{expression}: {told}")
        return told.strip().removeprefix("{ok, ").removesuffix("}")

    def ctl(self, *arguments: str) -> str:
        """Runs `rabbitmqctl`; about 0.7 s. Raises CommandFailed."""
        program = str(self._binaries / "rabbitmqctl")
        return command(
            [program, "-q", "-n", _NODE, *arguments], env=self.env(), cwd=self.home, account=self.account
        ).strip()

    def alarm(self) -> None:
        """Raises the memory alarm: from now on no connection that publishes is read from."""
        self.eval("vm_memory_monitor:set_vm_memory_high_watermark(0.00001)")

    def all_clear(self) -> None:
        """Ends the memory alarm."""
        self.eval("vm_memory_monitor:set_vm_memory_high_watermark(0.4)")

    def settle(self) -> None:
        """Writes the node's own records to disk; call it before `kill9` when queues were declared just before.

        Seen with RabbitMQ 3.10.8: killed within 0.2 s of the declare, a quorum queue came back without a leader and
        stayed so (4 of 4), and whoever asked for it waited in vain; after 1 s, or after this call, it never did. Its
        directory table saves itself every 500 ms, which fits, but the cause is not proven.
        """
        self.eval("[dets:sync(Table) || Table <- dets:all()]")

    def change_vhosts(self, add: Sequence[str], drop: Sequence[str]) -> None:
        """Adds and drops virtual hosts in one call."""
        self.eval(
            f'lists:foreach(fun(N) -> rabbit_vhost:delete(N, <<"tests">>) end, {_binaries(drop)}),'
            f'lists:foreach(fun(N) -> rabbit_vhost:add(N, <<"tests">>), rabbit_auth_backend_internal:set_permissions('
            f'<<"guest">>, N, <<".*">>, <<".*">>, <<".*">>, <<"tests">>) end, {_binaries(add)})'
        )

    def place(self) -> dict[str, Any]:
        return {**super().place(), "epmd_port": self._epmd_port, "dist_port": self._dist_port}

    def move_to(self, place: Mapping[str, Any]) -> None:
        super().move_to(place)
        self._epmd_port, self._dist_port = place["epmd_port"], place["dist_port"]

    def launch(self) -> None:
        if self._epmd is None:
            self._epmd = self._start_epmd()
        super().launch()

    def discard(self) -> None:
        if self._epmd is not None:
            self.run.kill(self._epmd)
            self._epmd = None
        super().discard()

    def prepare(self) -> None:
        self.write(".erlang.cookie", secrets.token_hex(16), mode=0o400)
        self.write("rabbitmq.conf", _CONF.format(port=self.port))
        self.write("enabled_plugins", "[].\n")
        self.write("env.conf", "")

    def argv(self) -> list[str]:
        return [str(self._binaries / "rabbitmq-server")]

    def env(self) -> dict[str, str]:
        home = str(self.home)
        return environment(
            self.home,
            ERL_EPMD_PORT=str(self._epmd_port),
            ERL_EPMD_ADDRESS="127.0.0.1",
            RABBITMQ_NODENAME=_NODE,
            RABBITMQ_DIST_PORT=str(self._dist_port),
            RABBITMQ_MNESIA_BASE=f"{home}/mnesia",
            RABBITMQ_LOG_BASE=f"{home}/log",
            RABBITMQ_PID_FILE=f"{home}/pid",
            RABBITMQ_CONFIG_FILE=f"{home}/rabbitmq.conf",
            RABBITMQ_GENERATED_CONFIG_DIR=f"{home}/generated",
            RABBITMQ_CONF_ENV_FILE=f"{home}/env.conf",
            RABBITMQ_ENABLED_PLUGINS_FILE=f"{home}/enabled_plugins",
            RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=_ERLANG.format(self.schedulers),
        )

    def answers(self) -> bool:
        return speaks_amqp(self.port)

    def log_tail(self, lines: int = 40) -> str:
        node_log = self.home / "log" / f"{_NODE}.log"
        text = node_log.read_text(errors="replace").splitlines()[-lines:] if node_log.exists() else []
        return "\n".join([super().log_tail(lines), *text])

    def _start_epmd(self) -> subprocess.Popen[bytes]:
        """Our own port mapper: the one that Erlang starts by itself would outlive the tests."""
        program = shutil.which("epmd", path=self.env()["PATH"]) or "epmd"
        return self.run.spawn(
            [program, "-port", str(self._epmd_port), "-address", "127.0.0.1"],
            env=self.env(),
            cwd=self.home,
            log=self.log,
            account=self.account,
        )


def _binaries(names: Sequence[str]) -> str:
    return "[" + ",".join(f'<<"{name}">>' for name in names) + "]"
