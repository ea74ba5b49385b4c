"""What do the tests send, and is an error what every error must be?"""

from __future__ import annotations

from typing import Any

import httpx

BODY = {"appName": "billing", "createdBy": "ada"}
JSON = {"Content-Type": "application/json"}


def problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The body of `answer`, which is a problem of this status and code."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert (body["status"], body["code"], body["type"]) == (status, code, f"/docs#{code}")
    assert body["title"]
    assert body["detail"]
    assert answer.headers["x-correlation-id"]
    return body
