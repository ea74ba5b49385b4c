"""Apps in the HTTP API: what one asks for, and what one gets."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from orchestrix import Resource
from sagas.app_provisioning import APP_PROVISIONING


class NewApp(BaseModel):
    """An app to create."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"appName": "billing", "createdBy": "ada"}]})

    appName: str
    createdBy: str
    data: dict[str, Any] = {}


class AppBody(BaseModel):
    """An app."""

    id: int


APPS = Resource(APP_PROVISIONING, "/apps", "appName", NewApp, AppBody)
