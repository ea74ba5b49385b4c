"""Do records change as `dataclasses.replace` changes them?"""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import UTC, datetime

import pytest

from orchestrix.saga.state import NO_PROGRESS, Instance, StateChange, with_changes

NOW = datetime(2026, 1, 2, tzinfo=UTC)
CHANGE = StateChange(1, None, "A", "created", "ada", "c", None, "m", NOW)
INSTANCE = Instance(
    1, "app", "k", "ada", "A", 1, "c", "m", 1, NOW, "deadline", 5, None, {}, 1, NOW, NOW, installation="i"
)


@pytest.mark.parametrize("record", [INSTANCE, NO_PROGRESS, CHANGE], ids=lambda one: type(one).__name__)
def test_each_field_alone(record: Instance) -> None:
    for one in fields(record):
        changed = with_changes(record, **{one.name: "other"})
        assert changed == replace(record, **{one.name: "other"})  # type: ignore[arg-type]
        assert {name: getattr(changed, name) for name in record.__slots__} == {
            name: "other" if name == one.name else getattr(record, name) for name in record.__slots__
        }


def test_several_fields_at_once() -> None:
    assert with_changes(INSTANCE, state="B", version=2) == replace(INSTANCE, state="B", version=2)
    assert with_changes(INSTANCE) == INSTANCE


def test_what_is_no_field_is_refused() -> None:
    with pytest.raises(TypeError, match="Instance has no field 'colour'"):
        with_changes(INSTANCE, colour="red")
