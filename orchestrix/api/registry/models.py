"""Registry models: what executors send, and groups and picks as they are shown."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from orchestrix.api import patterns
from orchestrix.api.answers import Answer, AnswerPage, OptionalTime, Time
from orchestrix.api.query import NameText, Query
from orchestrix.api.values import INTEGRAL, Name, Reason, asked
from orchestrix.domain.registry.addresses import ADDRESS_MAX_CHARS, parse_address
from orchestrix.domain.registry.executors import ExecutorState
from orchestrix.domain.registry.routing import Strategy
from orchestrix.persistence.registry import groups, registrations
from orchestrix.registry.directory import GroupView
from orchestrix.registry.registrar import GROUP_LIMIT

MOST_PICKS: Final = 10_000
MOST_WEIGHT: Final = 1_000_000
MOST_LOAD: Final = 1e9
MOST_RUNS: Final = 10_000
LONGEST_KEY: Final = 500
EXAMPLE: Final = "http://10.0.0.7:9999"
AS_OF: Final = "While the database is away: when this was read from it, for it may have changed since. Else null."
NULL: Final = {"type": "null"}


def address(text: str) -> str:
    """An executor's address in its normal form. Raises `ValueError` that says what to write."""
    try:
        return str(parse_address(text))
    except ValueError as wrong:
        raise ValueError(f"cannot be read: {wrong}") from None


Address = Annotated[
    str,
    AfterValidator(address),
    Field(
        description="Where the executor listens: scheme, host and port, and nothing more.",
        examples=[EXAMPLE],
        json_schema_extra={"format": "executor-address", "maxLength": ADDRESS_MAX_CHARS, "pattern": patterns.ADDRESS},
    ),
]
Visible = Annotated[str, Field(min_length=1, max_length=100, pattern=patterns.ASCII)]


_LENIENT: Final = ConfigDict(extra="ignore")


class ExecutorBody(BaseModel):
    """Which executor it is. Fields that are not known here are ignored, for executors are older and newer than this."""

    model_config = asked(registryGroup="EXECUTOR", registryKey="shop", registryValue=EXAMPLE) | _LENIENT

    registryGroup: Literal["EXECUTOR"] = Field(description="Always EXECUTOR.")
    registryKey: Name = Field(description="The app.", examples=["shop"])
    registryValue: Address
    instance: Visible | None = Field(
        None,
        description="An id of the process, new at each start: so it is not mistaken for another one at its address.",
    )


class HeartbeatBody(ExecutorBody):
    """A heartbeat."""

    model_config = (
        asked(
            registryGroup="EXECUTOR",
            registryKey="shop",
            registryValue=EXAMPLE,
            instance="0199c2a4-5b1e-7f3a-9c55-7b1f0c9f6d14",
            state="UP",
            weight=1,
            load=0.25,
        )
        | _LENIENT
    )

    state: Literal["UP", "DRAINING"] = Field("UP", description="DRAINING: it takes no new jobs.")
    weight: Annotated[int, INTEGRAL] = Field(1, ge=0, le=MOST_WEIGHT, description="Its share with WEIGHTED.")
    load: Annotated[float, Field(ge=0, le=MOST_LOAD, allow_inf_nan=False)] | None = Field(
        None, description="For LEAST_LOADED."
    )
    runs: list[Visible] = Field([], max_length=MOST_RUNS, description="The history ids of the attempts that it runs.")

    @property
    def heartbeat(self) -> registrations.Heartbeat:
        """What is recorded."""
        return registrations.Heartbeat(
            self.registryKey,
            self.registryValue,
            self.instance,
            self.state,
            self.weight,
            self.load,
            tuple(self.runs),
        )


class RegisteredBody(Answer):
    """The heartbeat is recorded."""

    beat_ms: int = Field(examples=[30000], description="After how many milliseconds the next one is expected.")


class DeregisteredBody(Answer):
    """This executor is not registered any more."""

    removed: bool = Field(examples=[True], description="Whether it was registered before.")


class ExecutorItem(Answer):
    """An executor."""

    address: str = Field(examples=[EXAMPLE])
    state: ExecutorState = Field(
        examples=["HEALTHY"],
        description="By the age of its last heartbeat. One that was removed is shown for 10 minutes.",
    )
    since: Time
    last_seen: OptionalTime = Field(examples=["2026-01-31T12:00:00.000000Z"])
    weight: int | None = Field(examples=[1])
    load: float | None = Field(examples=[0.25])
    in_flight: int = Field(examples=[0], description="How many attempts the cluster knows it to run.")
    drained: bool = Field(examples=[False], description="Whether a person has excluded it from new jobs.")
    suspected_by: list[str] = Field(
        examples=[[]],
        description="The nodes that it gave no answer. They pass it over for new jobs; from two on all nodes do.",
    )
    suspected_since: OptionalTime = Field(description="Since when it gives no answer to one of them.")


AddressType = Literal["AUTO", "MANUAL"]


class GroupBody(Answer):
    """The executors of an app, and the addresses that its jobs are routed to."""

    app_name: str = Field(examples=["shop"])
    address_type: AddressType | None = Field(
        examples=["AUTO"],
        description="AUTO: the addresses are those of the registered executors. MANUAL: a person has set them. null: "
        "the app has no group.",
    )
    address_list: list[str] = Field(examples=[[EXAMPLE]])
    executors: list[ExecutorItem]
    created_at: OptionalTime = Field(examples=["2026-01-31T12:00:00.000000Z"])
    updated_at: OptionalTime = Field(examples=["2026-01-31T12:00:00.000000Z"])
    as_of: OptionalTime = Field(description=AS_OF)

    @classmethod
    def made(cls, view: GroupView, as_of: object = None) -> Self:
        """The group as it is shown."""
        group = view.group
        kind = None if group is None else "AUTO" if group.address_type == groups.AUTO else "MANUAL"
        return cls.model_validate(
            {
                "app_name": view.app,
                "address_type": kind,
                "address_list": list(group.addresses) if group is not None else [],
                "executors": [ExecutorItem.of(one) for one in view.executors],
                "created_at": group.created_at if group is not None else None,
                "updated_at": group.updated_at if group is not None else None,
                "as_of": as_of,
            }
        )


class GroupPage(AnswerPage[GroupBody]):
    """Some groups by app, and where the next ones begin."""

    as_of: OptionalTime = Field(description=AS_OF)


class NewGroup(BaseModel):
    """What a group is from now on: MANUAL with an `addressList`, or AUTO without one."""

    model_config = asked(
        {
            "oneOf": [
                {
                    "required": ["addressList"],
                    "properties": {"addressType": {"const": "MANUAL"}, "addressList": {"not": NULL}},
                },
                {
                    "required": ["addressType"],
                    "properties": {"addressType": {"const": "AUTO"}, "addressList": NULL},
                },
            ]
        },
        addressType="MANUAL",
        addressList=[EXAMPLE],
        reason="these two alone have the licence",
    )

    addressType: AddressType = Field("MANUAL", description="AUTO: its registered executors. MANUAL: `addressList`.")
    addressList: list[Address] | None = Field(
        None, max_length=GROUP_LIMIT, description="The addresses of a MANUAL group; repetitions are left out."
    )
    reason: Reason | None = None

    @property
    def addresses(self) -> list[str] | None:
        """The addresses without repetitions; None for AUTO."""
        return None if self.addressType == "AUTO" else list(dict.fromkeys(self.addressList or ()))


class AppQuery(Query):
    """Which app."""

    app: NameText = Field(description="The app whose group it is.")


class RouteBody(BaseModel):
    """What to route by."""

    model_config = asked(
        {
            "anyOf": [
                {"properties": {"strategy": {"enum": [one for one in Strategy if one is not Strategy.ADDRESS]}}},
                {"required": ["address"], "properties": {"address": {"not": NULL}}},
            ]
        },
        strategy="CONSISTENT_HASH",
        key="customer-17",
    )

    strategy: Annotated[Strategy, BeforeValidator(lambda value: _strategy(value))] = Field(
        description="FIRST and LAST: who has been registered for the longest and the shortest time. ROUND_ROBIN: one "
        "after the other. RANDOM: any. WEIGHTED: any, by weight. LEAST_LOADED: who runs the fewest attempts, then by "
        "load. CONSISTENT_HASH: the same one for the same key. FAILOVER: all, in the order to try them. "
        "SHARDING_BROADCAST: all, a shard each. ADDRESS: the one at `address`."
    )
    key: str = Field(
        "",
        max_length=LONGEST_KEY,
        description="What CONSISTENT_HASH keeps together, by default a job's id: the same key, the same executor.",
    )
    address: Address | None = Field(None, description="For ADDRESS: which one.")
    count: Annotated[int, Field(ge=1, le=MOST_PICKS), INTEGRAL] | None = Field(
        None, description="So many picks, with the keys `key-0`, `key-1` and so on."
    )


def _strategy(value: object) -> object:
    return Strategy(value) if isinstance(value, str) and value in Strategy.__members__ else value


class RouteAnswer(Answer):
    """Which executor would get the job."""

    address: str | None = Field(examples=[EXAMPLE], description="The one that is picked; null where it is not one.")
    addresses: list[str] | None = Field(
        description="All of them: with `count` one for each pick, with FAILOVER in the order to try them, with "
        "SHARDING_BROADCAST by the index of the shard."
    )
    spread: dict[str, int] | None = Field(description="With `count`: how many picks each address has.")
    reason: str = Field(examples=["first seen of 3"])


class DrainBody(BaseModel):
    """Which executor is to get no new jobs."""

    model_config = asked(address=EXAMPLE, reason="its disk is full")

    address: Address
    drain: bool = Field(True, description="false: it gets jobs again.")
    reason: Reason | None = None
