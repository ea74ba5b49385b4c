"""Examples: an app, a row of its history and a dead letter for the OpenAPI document."""

from __future__ import annotations

from typing import Any

APP = {
    "id": 1,
    "appName": "billing",
    "createdBy": "ada",
    "state": "APP_INITIATED",
    "version": 1,
    "correlationId": "0199c2a4-5b1e-7f3a-9c55-7b1f0c9f6d11",
    "createdAt": "2026-01-31T12:00:00.000000Z",
    "updatedAt": "2026-01-31T12:00:00.000000Z",
    "attempt": 1,
    "wakeAt": "2026-01-31T12:01:00.000000Z",
    "wakeReason": "deadline",
    "blocker": None,
    "deadlineAt": None,
    "data": {},
}
CHANGE = {
    "version": 2,
    "fromState": "APP_INITIATED",
    "toState": "GIT_REPO_CREATED",
    "reason": "evt.gitRepoCreated",
    "actor": "orchestrator",
    "correlationId": APP["correlationId"],
    "causedBy": "0199c2a4-60aa-7d10-8f00-1a2b3c4d5e6f",
    "commandId": "0199c2a4-5b1e-7f3a-9c55-7b1f0c9f6d12",
    "at": "2026-01-31T12:00:01.250000Z",
}
DEAD_LETTER: dict[str, Any] = {
    "id": "0b6d5a4e-1f0c-8a7b-9d3e-2c4b6a8f0e1d",
    "queue": "evt.appRegistered",
    "routingKey": "evt.appRegistered",
    "type": "evt.appRegistered",
    "saga": "app",
    "appId": None,
    "messageId": CHANGE["causedBy"],
    "correlationId": APP["correlationId"],
    "reason": "not-json: line 1, column 2: the name of a field must stand there, in double quotes",
    "error": "line 1, column 2: the name of a field must stand there, in double quotes",
    "deliveries": 1,
    "bodySize": 9,
    "diedAt": "2026-01-31T12:00:01.250000Z",
    "recordedAt": "2026-01-31T12:00:01.300000Z",
    "redriven": 0,
    "redrivenAt": None,
    "editedAt": None,
}
