"""Health models: the components, and whether each is healthy."""

from __future__ import annotations

from pydantic import Field

from orchestrix.api.answers import Answer


class CheckBody(Answer):
    """How one component is."""

    component: str = Field(examples=["Database"])
    healthy: bool = Field(alias="isHealthy", examples=[True])
    reason: str | None = Field(
        None, exclude_if=lambda reason: reason is None, description="What is wrong with it; absent while it is healthy."
    )


class HealthBody(Answer):
    """How the process is."""

    status: str = Field(examples=["healthy"])
    checks: list[CheckBody]
