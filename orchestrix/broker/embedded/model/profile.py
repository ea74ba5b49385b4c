"""Profiles: the RabbitMQ version that the embedded broker behaves like."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrix.errors import ConfigError

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Profile:
    """Limits that differ between RabbitMQ versions. Sizes in bytes; no limit is `None`."""

    name: str
    delivery_limit: int | None
    unlimited_by_minus_one: bool
    max_message_size: int
    transient_shared_queues: bool
    last_death_headers: bool


# As 4.x: a message that keeps coming back is dead-lettered at its 21st return, and what 4.3 refuses is refused.
STRICT = Profile(
    name="strict",
    delivery_limit=20,
    unlimited_by_minus_one=True,
    max_message_size=16 * MIB,
    transient_shared_queues=False,
    last_death_headers=True,
)
# As 3.10: no default limit, and a limit of -1 means dead-lettered at the first return.
LENIENT = Profile(
    name="lenient",
    delivery_limit=None,
    unlimited_by_minus_one=False,
    max_message_size=128 * MIB,
    transient_shared_queues=True,
    last_death_headers=False,
)

PROFILES = {profile.name: profile for profile in (STRICT, LENIENT)}


def profile_named(name: str) -> Profile:
    """The profile of that name. Raises ConfigError."""
    if name not in PROFILES:
        raise ConfigError(f"unknown profile {name!r} of the embedded broker; known are {', '.join(PROFILES)}.")
    return PROFILES[name]
