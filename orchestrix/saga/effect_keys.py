"""Effect keys: the keys of a step's effects, and the runs whose effects are still to be undone."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from orchestrix.saga.state import Instance

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_RUN: Final = re.compile(r":run[0-9]+$")


def former_key(saga: str, id: int, step: str) -> str:
    """The key of instances that are older than the row `installation`, and of commands that carry none."""
    return f"{saga}:{id}:{step}:do"


def effect_key(instance: Instance, step: str, *, undoes: bool) -> str:
    """The key of the step's effects: the same over all tries, and for their compensation.

    It contains the time because a restored database gives the same ids to other instances.
    """
    run = undone_run(instance, step) if undoes else instance.progress.run
    return key_of_first(instance, first_name(instance, step), run)


def key_of_first(instance: Instance, name: str, run: int) -> str:
    """The key of the step's effects in that run, by the name under which it was first sent."""
    if not instance.installation:
        return former_key(instance.saga, instance.id, name)
    made = (instance.created_at - _EPOCH) // _MICROSECOND
    key = f"{instance.installation}:{instance.saga}:{instance.id}:{made}:{name}"
    return key if run == 1 else f"{key}:run{run}"


def first_name(instance: Instance, step: str) -> str:
    """The name under which the step was first sent: another version of the saga may have renamed it since."""
    return instance.progress.named.get(step, step)


def step_key(key: str) -> str:
    """`key` without its run: what the keys of one step of one instance have in common."""
    return _RUN.sub("", key)


def undone_run(instance: Instance, step: str) -> int:
    """The run whose effects of the step are undone next: the latest first."""
    runs = instance.progress.runs.get(step)
    return runs[-1] if runs else instance.progress.run


def next_run(instance: Instance, unfinished: Iterable[str]) -> tuple[int, Mapping[str, tuple[int, ...]]]:
    """The number of the run that begins now, and the runs of which each unfinished step is still to be undone.

    The keys of an instance from before the row `installation` contain no run, so it stays in its first one.
    """
    progress = instance.progress
    if not instance.installation:
        return progress.run, {}
    return progress.run + 1, {name: progress.runs.get(name, (progress.run,)) for name in unfinished}


def runs_to_undo(instance: Instance, names: Iterable[str], present: Collection[str]) -> Mapping[str, tuple[int, ...]]:
    """The runs of which these steps must be undone, where that is not the present one alone.

    `present` are those that the present run may have done. Without an entry a step is undone as that of this run.
    """
    progress = instance.progress
    if not progress.runs:
        return {}
    found = {}
    for name in names:
        earlier = progress.runs.get(name, ())
        runs = (*earlier, progress.run) if name in present and progress.run not in earlier else earlier
        if runs and runs != (progress.run,):
            found[name] = runs
    return found


def all_runs(instance: Instance, step: str) -> Mapping[str, tuple[int, ...]]:
    """The runs to undo once the step turns out to be done by a try of one of them, unknown which.

    The one that is undone now stays the last, because its command is pending.
    """
    progress = instance.progress
    if progress.run == 1:
        return progress.runs
    now = undone_run(instance, step)
    others = (run for run in range(1, progress.run + 1) if run != now)
    return {**progress.runs, step: (*others, now)}


def without(instance: Instance, step: str) -> Mapping[str, tuple[int, ...]]:
    """The runs to undo once the step is undone in the one that was next."""
    runs = instance.progress.runs
    rest = runs.get(step, ())[:-1]
    others = {name: value for name, value in runs.items() if name != step}
    return {**others, step: rest} if rest else others
