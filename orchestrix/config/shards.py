"""Shard settings: how members of services of shards are watched, and how long changes of them are gathered."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from orchestrix.config.groups import Seconds, SettingsGroup


class ShardsSettings(SettingsGroup):
    """How services of shards are coordinated, in seconds.

    Changes within one `window` share a generation. A member is inactive without a heartbeat for `heartbeat_timeout`,
    which is looked at every `check`. `plain` is how clients are trusted that know no generations: `protect` gives no
    shard to another that one still reports, `push` does. `allocation` is by which rule shards are divided: `even` is
    S1's, `minimal` moves as few as can be and knows weights. The node that leads a change decides, and what it has
    decided is stored: so nodes may have different ones while it is changed.
    """

    window: Seconds = 2.0
    heartbeat_timeout: Seconds = 15.0
    check: Seconds = 5.0
    plain: Literal["protect", "push"] = "protect"
    allocation: Literal["even", "minimal"] = "even"

    @model_validator(mode="after")
    def _consistent(self) -> ShardsSettings:
        if self.check * 3 > self.heartbeat_timeout * 2:  # 10 s of 15 s fit, as clients of S1 know them
            raise ValueError(
                f"shards.check ({self.check:g}) must be at most two thirds of shards.heartbeat_timeout "
                f"({self.heartbeat_timeout:g}), or shards would stay too long with members that are gone: "
                "lower the first or raise the second"
            )
        return self
