"""A worker by plain pika that follows the contract, but for the fault that it is told: checked_worker.py URL [FAULT]"""

from __future__ import annotations

import json
import pathlib
import signal
import sys
import time
from typing import Any

import pika

MADE = pathlib.Path("made")
FAULT = sys.argv[2] if len(sys.argv) > 2 else ""
KNOWN = {
    "id", "type", "saga", "appId", "appName", "correlationId", "expectedState", "step", "attempt", "timeoutMs",
    "idempotencyKey", "effectKey", "definitionVersion", "undoesAttempt", "data",
}  # fmt: skip
latest: dict[int, str] = {}


def tell(channel: Any, kind: str, command: dict[str, Any], **more: object) -> None:
    """Publishes an event of the command."""
    cause = command["id"]
    if FAULT == "echoes the latest":
        cause = latest[command["appId"]]
    fields: dict[str, object] = {name: command[name] for name in ("appId", "saga", "correlationId")}
    if FAULT != "echoes nothing":
        fields["causationId"] = cause
    lasting = pika.BasicProperties(content_type="application/json", delivery_mode=2)  # type: ignore[no-untyped-call]
    channel.basic_publish("orchestrator.events", kind, json.dumps(fields | more).encode(), lasting, mandatory=True)


def place(command: dict[str, Any]) -> pathlib.Path:
    """Where its effect is."""
    return MADE / str(command["effectKey"])


def do(channel: Any, redelivered: bool, command: dict[str, Any]) -> None:
    """The step."""
    if command["effectKey"] in undone:
        return None
    attempts = command["attempt"], command["id"]
    latest[command["appId"]] = max(attempts, before.get(command["appId"], attempts))[1]
    before[command["appId"]] = max(attempts, before.get(command["appId"], attempts))
    if FAULT == "refuses new fields" and set(command) - KNOWN:
        return tell(channel, "evt.stepFailed", command, error={"type": "Strict", "message": "unknown field"})
    if command["data"].get("fail"):
        unsure = redelivered and FAULT != "is sure"
        error = {"type": "Asked", "message": "to fail", "retryable": False, "unsure": unsure}
        return tell(channel, "evt.stepFailed", command, error=error)
    if FAULT == "fails duplicates" and place(command).exists():
        return tell(channel, "evt.stepFailed", command, error={"type": "Exists", "message": "is there"})
    if (seconds := command["data"].get("seconds", 0)) > 0:
        quarter = command["timeoutMs"] / 4000
        time.sleep(min(quarter, seconds))
        if seconds > quarter and FAULT != "is silent":
            tell(channel, "evt.stepStarted", command, beganMsAgo=round(quarter * 1000))
        time.sleep(max(0.0, seconds - quarter))
    place(command).write_text(str(command["appId"]))
    return tell(channel, "evt.appRegistered", command, data={"executorGroup": command["appName"]})


def undo(channel: Any, command: dict[str, Any]) -> None:
    """Its undo."""
    if FAULT == "undoes by app":
        for one in MADE.iterdir():
            if one.read_text() == str(command["appId"]):
                one.unlink()
    elif FAULT != "undoes nothing":
        place(command).unlink(missing_ok=True)
    if FAULT == "drops what is undone":  # which the contract allows
        undone.add(command["effectKey"])
    tell(channel, "evt.appUnregistered", command)


before: dict[int, tuple[int, str]] = {}
undone: set[str] = set()


def work(channel: Any, delivery: Any, _properties: Any, body: bytes) -> None:
    """One delivery."""
    if FAULT == "acknowledges first":
        channel.basic_ack(delivery.delivery_tag)
        channel.connection.sleep(0.05)
    try:
        command = json.loads(body)
        known = place(command), command["data"], command["id"]
        assert all(part is not None for part in known)
    except (ValueError, KeyError, TypeError):
        if FAULT == "dies of poison":
            raise
        if FAULT == "drops poison":
            channel.basic_ack(delivery.delivery_tag)
        else:
            channel.basic_reject(delivery.delivery_tag, requeue=False)
        return
    if command["type"] == "cmd.registerApp":
        do(channel, delivery.redelivered, command)
    else:
        undo(channel, command)
    if FAULT != "acknowledges first":
        channel.basic_ack(delivery.delivery_tag)


MADE.mkdir(exist_ok=True)
if FAULT == "hangs at the end":
    signal.signal(signal.SIGTERM, lambda *_: time.sleep(60))
opened = pika.BlockingConnection(pika.URLParameters(sys.argv[1])).channel()
opened.confirm_delivery()
opened.basic_qos(prefetch_count=10)
for queue in ("cmd.registerApp", "cmd.unregisterApp"):
    opened.basic_consume(queue, work)
opened.start_consuming()
