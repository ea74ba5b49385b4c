"""App resource: the fields that apps have over HTTP, at `/apps`."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from orchestrix import Resource
from sagas.app_provisioning import APP_PROVISIONING


class NewApp(BaseModel):
    """An app to create."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"appName": "billing", "createdBy": "ada"}]},
    )

    appName: str
    createdBy: str
    data: dict[str, Any] = Field(default_factory=dict)


class AppBody(BaseModel):
    """One app."""

    model_config = ConfigDict(extra="forbid")

    id: int
    appName: str
    createdBy: str
    state: str
    version: int
    correlationId: str
    traceId: str | None
    createdAt: datetime
    updatedAt: datetime
    attempt: int
    wakeAt: datetime | None
    wakeReason: str | None
    blocker: str | None
    deadlineAt: datetime | None
    data: dict[str, Any]


APPS = Resource(
    APP_PROVISIONING,
    "/apps",
    key_name="appName",
    request=NewApp,
    answer=AppBody,
    about="Apps: their git repository is created, then they are registered.",
)
