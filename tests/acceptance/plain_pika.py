"""A worker that knows nothing but the contract: it reads a queue, publishes events, acknowledges."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pika

EVENTS = {"cmd.createGitRepo": "evt.gitRepoCreated", "cmd.registerApp": "evt.appRegistered"}
UNDOS = {"cmd.deleteGitRepo": "evt.gitRepoDeleted", "cmd.unregisterApp": "evt.appUnregistered"}

Answer = Callable[[Any, dict[str, Any]], None]


def succeed(channel: Any, command: dict[str, Any], *, times: int = 1) -> None:
    """Publishes the success event of `command`, as often as asked."""
    event = {
        "appId": command["appId"],
        "correlationId": command["correlationId"],
        "causationId": command["id"],
        "data": {"by": "pika"},
    }
    for _ in range(times):
        channel.basic_publish("orchestrator.events", {**EVENTS, **UNDOS}[command["type"]], json.dumps(event).encode())


def fail(
    channel: Any,
    command: dict[str, Any],
    *,
    message: str = "no space left",
    retryable: bool = False,
    after_ms: int | None = None,
    unsure: bool = False,
) -> None:
    """Publishes `evt.stepFailed` for `command`, with the wish to be asked again after `after_ms` milliseconds.

    `unsure` says that somebody else may have done something of it before.
    """
    wish: dict[str, Any] = {} if after_ms is None else {"retryAfterMs": after_ms}
    if unsure:
        wish["unsure"] = True
    event = {
        "appId": command["appId"],
        "saga": command["saga"],
        "correlationId": command["correlationId"],
        "causationId": command["id"],
        "error": {"type": "DiskFull", "message": message, "retryable": retryable, **wish},
    }
    channel.basic_publish("orchestrator.events", "evt.stepFailed", json.dumps(event).encode())


class PikaWorker:
    """Consumes command queues in a thread of its own until `stop`; `answer` publishes what it likes."""

    def __init__(self, url: str, answer: Answer, queues: tuple[str, ...] = tuple(EVENTS)) -> None:
        self._url = url
        self._answer = answer
        self._queues = queues
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pika worker")
        self.commands: list[dict[str, Any]] = []
        self.properties: list[Any] = []
        self.error: BaseException | None = None
        self.reads = threading.Event()
        """Set once it has subscribed to all its queues."""
        self.taken = threading.Event()
        """Set once there has been a command."""
        self.redelivered = False
        """Whether the present command was given to a worker before."""

    def __enter__(self) -> PikaWorker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(10)
        assert self.error is None, self.error

    def _run(self) -> None:
        try:
            connection = pika.BlockingConnection(pika.URLParameters(self._url))
            channel = connection.channel()
            channel.basic_qos(prefetch_count=20)
            for queue in self._queues:
                channel.basic_consume(queue, self._received)
            self.reads.set()
            while not self._stopped.is_set():
                connection.process_data_events(time_limit=0.05)
            connection.close()
        except BaseException as error:
            self.error = error

    def _received(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        command = json.loads(body)
        self.commands.append(command)
        self.properties.append(properties)
        self.taken.set()
        self.redelivered = method.redelivered
        self._answer(channel, command)
        channel.basic_ack(method.delivery_tag)
