"""Contracts of the registry: what a node asks of an executor over HTTP, and what the executor reports.

What executors register is a model of the API (`orchestrix.api.registry.models`).
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from orchestrix.domain.contracts.fields import ContractModel, Count, Number, Text, Uuid

Url = Annotated[str, Field(pattern="^https?://", max_length=2000)]


class RunCallMessage(ContractModel):
    """Run an attempt of a job. 200: it is taken, also if it runs or has run; 409 and 503: not now."""

    jobId: Uuid
    historyId: Uuid
    attempt: Number
    handler: Text
    payload: Any
    timeoutMs: Number | None
    correlationId: Text
    group: Text
    shardIndex: Count | None = None
    shardTotal: Number | None = None
    callbacks: list[Url] = Field(min_length=1, max_length=20, description="Where the attempt is reported.")
    token: Text = Field(description="What the reports carry; it is good for this attempt alone.")


class CancelCallMessage(ContractModel):
    """Stop an attempt."""

    jobId: Uuid
    historyId: Uuid
    reason: str
