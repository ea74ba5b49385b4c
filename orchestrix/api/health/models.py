"""Health models: the components, and whether each is healthy."""

from __future__ import annotations

from pydantic import Field

from orchestrix.api.answers import Answer, example


class CheckBody(Answer):
    """How one component is."""

    component: str
    healthy: bool = Field(alias="isHealthy")
    reason: str | None = Field(
        None, exclude_if=lambda reason: reason is None, description="What is wrong with it; absent while it is healthy."
    )


class HealthBody(Answer):
    """How the process is."""

    model_config = example(status="healthy", checks=[{"component": "Database", "isHealthy": True}])

    status: str
    checks: list[CheckBody]
