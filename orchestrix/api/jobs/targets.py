"""Job targets: for whom a job is, as clients send it: a queue, or a group of executors and how one is picked."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, Field

from orchestrix.api.problems import invalid_body
from orchestrix.api.registry.models import EXAMPLE, NULL, Address
from orchestrix.api.values import Name, asked
from orchestrix.saga.job_targets import BroadcastEnd, JobTarget, Routing, Strategy

STRATEGIES_ABOUT: Final = (
    "FIRST and LAST: who has been registered for the longest and the shortest time. ROUND_ROBIN: one after the other. "
    "RANDOM: any. WEIGHTED: any, by weight. LEAST_LOADED: who runs the fewest attempts, then by load. CONSISTENT_HASH: "
    "the same one for the same `key`. FAILOVER: the first one that takes it. SHARDING_BROADCAST: all of them, a shard "
    "each. ADDRESS: the one at `address`."
)
_VALUE: Final = {"not": NULL}
_SPECIAL: Final = (Strategy.ADDRESS, Strategy.SHARDING_BROADCAST)
FITTING: Final[dict[str, Any]] = {
    "oneOf": [
        {
            "properties": {
                "strategy": {"enum": [one.value for one in Strategy if one not in _SPECIAL]},
                "address": NULL,
                "end": NULL,
            }
        },
        {
            "required": ["strategy", "address"],
            "properties": {"strategy": {"const": Strategy.ADDRESS.value}, "address": _VALUE, "end": NULL},
        },
        {
            "required": ["strategy"],
            "properties": {"strategy": {"const": Strategy.SHARDING_BROADCAST.value}, "address": NULL},
        },
    ]
}
"""Which fields of a routing go with which strategy, as a schema says it."""
DEADLINE: Final[dict[str, Any]] = {
    "anyOf": [
        {"properties": {"deadline": NULL}},
        {
            "required": ["group", "routing"],
            "properties": {
                "routing": {
                    "type": "object",
                    "required": ["strategy"],
                    "properties": {"strategy": {"const": Strategy.SHARDING_BROADCAST.value}},
                }
            },
        },
    ]
}
"""That a broadcast alone has a deadline, as a schema says it."""
QUEUE_OR_GROUP: Final[dict[str, Any]] = {
    "oneOf": [
        {"required": ["queue"], "properties": {"queue": _VALUE, "group": NULL, "routing": NULL}},
        {"required": ["group"], "properties": {"group": _VALUE, "queue": NULL}},
    ]
}
"""That a job has one of both, as a schema says it."""


def _read_strategy(value: object) -> object:
    return Strategy(value) if isinstance(value, str) and value in Strategy.__members__ else value


def _read_end(value: object) -> object:
    return BroadcastEnd(value) if isinstance(value, str) and value in list(BroadcastEnd) else value


class RoutingBody(BaseModel):
    """How the executor of a job is picked."""

    model_config = asked(FITTING, strategy="CONSISTENT_HASH", key="customer-17")

    strategy: Annotated[Strategy, BeforeValidator(_read_strategy)] = Field(
        Strategy.ROUND_ROBIN, description=STRATEGIES_ABOUT
    )
    key: Name | None = Field(
        None,
        description="What CONSISTENT_HASH keeps together; by default the id of the job's schedule, the saga and the "
        "instance of a step, else the job's id.",
    )
    address: Address | None = Field(None, description="For ADDRESS: which executor of the group.", examples=[EXAMPLE])
    end: Annotated[BroadcastEnd, BeforeValidator(_read_end)] | None = Field(
        None,
        description="For SHARDING_BROADCAST: it has succeeded when `all` executors have, as by default, or with "
        "`any` when the first one has; then the others are cancelled.",
    )

    @property
    def routing(self) -> Routing:
        """The same for the job."""
        return Routing(self.strategy, self.key, self.address, self.end)


Group = Annotated[Name, Field(json_schema_extra={"format": "executor-group"})]


def target_of(queue: str | None, group: str | None, routing: RoutingBody | None, above: str = "") -> JobTarget:
    """For whom the job is. `above` is the JSON pointer of what has these fields.

    Raises `Problem` 422 that names the wrong field and says what to write.
    """
    found = [(f"/{name}", what) for name, what in _faults(queue, group, routing)]
    if routing is not None and not found:
        found = [(f"/routing/{name}", what) for name, what in routing.routing.faults()]
    if found:
        raise invalid_body([{"pointer": f"{above}{name}", "detail": what} for name, what in found])
    return JobTarget(queue, group, None if routing is None else routing.routing)


def deadline_of(target: JobTarget, deadline: timedelta | None) -> timedelta | None:
    """The deadline, which a broadcast alone can have. Raises `Problem` 422."""
    routing = target.routing
    if deadline is not None and (routing is None or routing.strategy is not Strategy.SHARDING_BROADCAST):
        detail = "has no use without strategy SHARDING_BROADCAST: leave it out, or set the timeout of each attempt"
        raise invalid_body([{"pointer": "/deadline", "detail": detail}])
    return deadline


def _faults(queue: str | None, group: str | None, routing: RoutingBody | None) -> list[tuple[str, str]]:
    if queue is None and group is None:
        return [("queue", "is missing: name the queue of workers, or a group of executors instead")]
    if queue is not None and group is not None:
        return [("group", "must not be given beside a queue: name one of both")]
    if queue is not None and routing is not None:
        return [("routing", "has no use with a queue: leave it out, or name a group instead of the queue")]
    return []
