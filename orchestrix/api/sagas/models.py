"""Saga models: the catalogue, and what starts an instance of any saga."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, Field, create_model

from orchestrix.api.answers import Answer, AnswerPage
from orchestrix.api.instances.lists import KEY
from orchestrix.api.instances.models import PreviewBase, SagaBody, SagaPage, SagaPreview
from orchestrix.api.values import DATA_ABOUT, Name, asked
from orchestrix.resource import Resource


class NewSaga(BaseModel):
    """An instance to start."""

    model_config = asked(key="order-4711", createdBy="ada", data={"amount": 12})

    key: Name
    createdBy: Name
    data: dict[str, Any] = Field(default_factory=dict, description=DATA_ABOUT)


class VersionBody(Answer):
    """One version of a saga. `definition` is null for one that is not stored."""

    version: int
    form: int | None = Field(description="The form in which `definition` is written.")
    digest: str | None = Field(description="SHA-256 of what a run of it does.")
    definition: dict[str, Any] | None = Field(description="Steps, messages, times in µs and undo.")
    runs_here: bool = Field(description="Whether this node can run its instances.")
    live: dict[str, int] = Field(
        examples=[{"REGISTERING": 2}], description="How many instances have not ended, by state."
    )


class SagaVersionsBody(Answer):
    """A saga with all its versions. `starts` is that of new instances on this node, null where it has no code."""

    saga: str = Field(examples=["app"])
    path: str = Field(examples=["/apps"], description="Where its instances are.")
    starts: int | None
    versions: list[VersionBody]


class CatalogueBody(Answer):
    """Every saga, by name."""

    items: list[SagaVersionsBody]


def models(resources: Iterable[Resource]) -> tuple[type[BaseModel], type[BaseModel], type[BaseModel]]:
    """An instance, a page of them, and a preview. Instances of resources have their names twice."""
    names: dict[str, Any] = {
        one.key_name: (str, Field("", alias=one.key_name)) for one in resources if one.key_name != KEY
    }
    if not names:
        return SagaBody, SagaPage, SagaPreview
    also = "".join(
        f" Those of the saga `{one.saga.name}` have their `{one.key_name}` too."
        for one in resources
        if one.key_name in names
    )
    body = create_model("SagaBody", __base__=SagaBody, __doc__=f"{SagaBody.__doc__}{also}", **names)
    base: Any = AnswerPage[body]
    page = create_model("SagaPage", __base__=base, __doc__=SagaPage.__doc__)
    instance: Any = (body, SagaPreview.model_fields["instance"])
    return body, page, create_model("SagaPreview", __base__=PreviewBase, __doc__=SagaPreview.__doc__, instance=instance)
