"""Is a UUID that is made of a name the same for the same name alone?"""

from __future__ import annotations

from uuid import RFC_4122, UUID

from orchestrix import clock


def test_a_named_uuid_is_that_of_its_parts() -> None:
    made = clock.named_uuid(b"queue", b"id")
    assert made == clock.named_uuid(b"queue", b"id") == "6f01795c-4f24-83e5-a961-ea3254470163"
    assert (UUID(made).version, UUID(made).variant) == (8, RFC_4122)


def test_where_a_part_ends_matters() -> None:
    names = [(b"ab", b"c"), (b"a", b"bc"), (b"abc",), (b"abc", b""), ()]
    assert len({clock.named_uuid(*parts) for parts in names}) == len(names)
