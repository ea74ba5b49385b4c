"""Names: which ones are accepted."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator, Field

from orchestrix.saga.validation.names import MAX_NAME_LENGTH, normal

__all__ = ["ABOUT", "MAX_NAME_LENGTH", "Name", "normal"]

ABOUT: Final = (
    "Brought to Unicode NFC, then 1 to 200 code points without control characters and without white space around it. "
    "Upper and lower case are different names."
)

Name = Annotated[
    str,
    AfterValidator(normal),
    Field(description=ABOUT, json_schema_extra={"minLength": 1, "maxLength": MAX_NAME_LENGTH}),
]
