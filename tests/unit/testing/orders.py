"""What does a team's own saga look like, with handlers that call a provider?"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

from orchestrix import COMPLETED, Command, Compensation, Context, NothingToUndo, RetryPolicy, Saga, Step, handles
from orchestrix.testing.simulation.virtual_time import elapse

RETRY = RetryPolicy(attempts=4, base=timedelta(seconds=2), cap=timedelta(seconds=60))
TIME = timedelta(seconds=20)

ORDER = Saga(
    name="order",
    steps=(
        Step("reserve", "ORDERED", "cmd.reserve", "evt.reserved", "PAYING", Compensation("cmd.free", "evt.freed")),
        Step("pay", "PAYING", "cmd.pay", "evt.paid", "SHIPPING", Compensation("cmd.refund", "evt.refunded")),
        Step(
            "ship", "SHIPPING", "cmd.ship", "evt.shipped", COMPLETED, NothingToUndo("gone"), timeout=TIME, retry=RETRY
        ),
    ),
)


class Provider:
    """Remembers what was done, by key and without."""

    def __init__(self) -> None:
        self.charges: dict[str, int] = {}
        self.calls: Counter[str] = Counter()

    def empty(self) -> None:
        """Forgets all."""
        self.charges.clear()
        self.calls.clear()

    async def charge(self, key: str, amount: int) -> None:
        """Takes the money, once a key, and needs a while for it."""
        await elapse(0.2)
        self.charges[key] = amount
        self.calls[key] += 1

    async def refund(self, key: str) -> None:
        """Gives it back, if it was taken."""
        await elapse(0.1)
        self.charges.pop(key, None)


PROVIDER = Provider()


@handles("cmd.reserve")
async def reserve(context: Context, command: Command) -> dict[str, str]:
    """Takes a seat."""
    return {"seat": f"row {context.app_id}"}


@handles("cmd.free")
def free(context: Context, command: Command) -> None:
    """Gives the seat back; no coroutine."""


@handles("cmd.pay")
async def pay(context: Context, command: Command) -> dict[str, int]:
    """Charges the customer."""
    await PROVIDER.charge(context.effect_key, command.data["amount"])
    return {"paid": command.data["amount"]}


@handles("cmd.refund")
async def refund(context: Context, command: Command) -> None:
    """Gives the money back."""
    await PROVIDER.refund(context.effect_key)


@handles("cmd.ship")
async def ship(context: Context, command: Command) -> dict[str, str]:
    """Sends it."""
    await elapse(1.0)
    return {"parcel": f"P{context.app_id}"}
