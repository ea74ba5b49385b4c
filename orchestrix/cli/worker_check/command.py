"""Worker check command: runs the rules against a worker, and prints the verdict of each."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from orchestrix.cli.settings import load, quieten
from orchestrix.cli.syntax.values import json_object
from orchestrix.cli.worker_check.verdict import PASSED, SKIPPED, Verdict, printed
from orchestrix.errors import ConfigError, NotFound
from orchestrix.lifecycle import run_to_the_end

if TYPE_CHECKING:
    from orchestrix.saga.catalog import Catalog, MessageOwner

READ_TIMEOUT_S: Final = 600.0
"""Seconds for a person to start the worker."""


def worker_check(arguments: argparse.Namespace) -> int:
    """`worker-check`: answers 1 if the worker breaks a rule."""
    settings = load(arguments)
    quieten(settings, arguments)
    from orchestrix.bootstrap.factories import load_catalog

    catalog = load_catalog(settings)
    owner = _owner(catalog, arguments.command_name)
    found: list[Verdict] = []
    run_to_the_end(_check(catalog, owner, arguments, found))
    return printed(found, arguments.output)


def _owner(catalog: Catalog, command: str) -> MessageOwner:
    """The step of the command. Raises `NotFound`, and `ConfigError` for an undo."""
    owner = catalog.command(command)
    if owner is None:
        known = sorted(one for one in catalog.commands if not _undoes(catalog, one))
        meant = get_close_matches(command, known, 1)
        helps = f"did you mean {meant[0]}?" if meant else f"known are {', '.join(known) or 'none'}"
        raise NotFound(f"no saga has the command {command}: {helps} (ORCHESTRIX_SAGAS, orchestrix.toml)")
    if owner.undoes:
        raise ConfigError(
            f"{command} undoes {owner.step.name}: check {owner.step.command}, and its undo is checked too"
        )
    return owner


def _undoes(catalog: Catalog, command: str) -> bool:
    owner = catalog.command(command)
    return owner is not None and owner.undoes


async def _check(catalog: Catalog, owner: MessageOwner, arguments: argparse.Namespace, found: list[Verdict]) -> None:
    from orchestrix.cli.worker_check import rules
    from orchestrix.cli.worker_check.orchestrator import PlayedOrchestrator
    from orchestrix.cli.worker_check.process import CheckedProcess, EffectProbe

    failing, slow = (_given(getattr(arguments, name), f"--{name}") for name in ("failing", "slow"))
    effect = EffectProbe(arguments.effect) if arguments.effect is not None else None
    data = _given(arguments.data, "--data") or {}
    async with PlayedOrchestrator(catalog, owner, data, arguments.timeout, arguments.port) as played:
        process = CheckedProcess(arguments.start, "{url}", played.url) if arguments.start is not None else None
        left = [played.command(), *([played.command(patch=failing)] if failing is not None else [])]
        await played.leave_redelivered(*left)
        try:
            await _begin(played, process, owner)
            worker = rules.WorkerUnderCheck(
                played, process, effect, failing, slow, left, arguments.stop_timeout, _ask_to_stop
            )
            found.append(await _verdict(rules.answers, worker))
            if found[0].status == PASSED:
                found += [await _verdict(rule, worker) for rule in rules.RULES.values()]
            else:
                found += [Verdict(name, SKIPPED, "it answers nothing as it should") for name in rules.RULES]
        finally:
            if process is not None:
                await process.close()


async def _verdict(rule: Any, worker: Any) -> Verdict:
    """That of the rule. Raises `ConfigError` where the worker could not be started again meanwhile."""
    verdict: Verdict = await rule(worker)
    if worker.process is not None:
        worker.process.raise_failure()
    return verdict


async def _begin(played: Any, process: Any, owner: MessageOwner) -> None:
    """The worker reads its queue. Raises `ConfigError` where it never does."""
    _say(f"broker: {played.url}")
    if process is not None:
        await process.start()
    else:
        _say(f"waiting for a worker that reads {owner.order.command}; Ctrl-C ends")
    end = asyncio.get_running_loop().time() + (READ_TIMEOUT_S if process is None else played.timeout_s)
    while not await played.readers():
        if process is not None:
            process.raise_failure()
        if asyncio.get_running_loop().time() > end:
            ended = process.explain_end() if process is not None else ""
            raise ConfigError(f"no worker has come to read {owner.order.command} at {played.url}{ended}")
        await asyncio.sleep(0.05)


def _given(text: str | None, flag: str) -> Mapping[str, Any] | None:
    return None if text is None else json_object(text, flag)


def _ask_to_stop() -> None:
    _say("stop the worker now, by SIGTERM")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
