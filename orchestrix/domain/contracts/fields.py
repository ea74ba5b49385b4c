"""Contract fields: what the fields of several messages are, and the base of all models."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from orchestrix.saga.messages import MAX_EVENT_ID, MAX_ID

UUID_PATTERN: Final = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
MOST_TEXT: Final = 2**20


class ContractModel(BaseModel):
    """A message in JSON. Fields that a reader does not know are ignored, for programs are older and newer than it."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


Text = Annotated[str, Field(min_length=1, max_length=MOST_TEXT)]
Uuid = Annotated[str, Field(pattern=UUID_PATTERN, examples=["0199c2a4-5b1e-7f3a-9c55-7b1f0c9f6d14"])]
Id = Annotated[str, Field(min_length=1, max_length=MAX_EVENT_ID)]
Number = Annotated[int, Field(ge=1, lt=MAX_ID)]
Count = Annotated[int, Field(ge=0, lt=MAX_ID)]
Millis = Annotated[int, Field(ge=0, lt=MAX_ID, description="Milliseconds.")]
Time = Annotated[
    str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", json_schema_extra={"format": "date-time"}, max_length=40)
]
Data = Annotated[dict[str, Any], Field(description="JSON of the saga's author, at most 64 KiB.")]
