"""Executor check command: runs the rules against an executor, and prints the verdict of each."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any, Final

from orchestrix.cli.settings import load, quieten
from orchestrix.cli.worker_check.verdict import FAILED, PASSED, SKIPPED, Verdict, printed
from orchestrix.domain.registry.addresses import parse_address
from orchestrix.errors import ConfigError, Invalid, Unavailable
from orchestrix.lifecycle import run_to_the_end

TOKEN: Final = "REGISTRY_TOKEN"
"""The variable that holds the registry token, so that it stands in no list of processes."""


def executor_check(arguments: argparse.Namespace) -> int:
    """`executor-check`: answers 1 if the executor breaks a rule."""
    settings = load(arguments)
    quieten(settings, arguments)
    try:
        url = str(parse_address(arguments.url))
    except ValueError as wrong:
        raise ConfigError(f"{arguments.url[:100]!r} is no address of an executor: {wrong}") from wrong
    payload, slow = _given(arguments.payload, "--payload"), _given(arguments.slow, "--slow")
    found: list[Verdict] = []
    run_to_the_end(_check(url, arguments, {} if payload is None else payload, slow, found))
    return printed(found, arguments.output)


async def _check(url: str, arguments: argparse.Namespace, payload: Any, slow: Any, found: list[Verdict]) -> None:
    from orchestrix.cli.executor_check import rules
    from orchestrix.cli.executor_check.node import PlayedNode
    from orchestrix.cli.worker_check.process import CheckedProcess

    token = os.environ.get(TOKEN) or None
    async with PlayedNode(url, arguments.group, token, arguments.timeout) as node:
        print(f"admin: {node.admin}", file=sys.stderr, flush=True)
        process = CheckedProcess(arguments.start, "{admin}", node.admin) if arguments.start is not None else None
        try:
            if process is not None:
                await process.start()
            if not await node.reached(node.timeout_s):
                if process is not None:
                    process.raise_failure()
                ended = process.explain_end() if process is not None else ""
                raise Unavailable(f"no executor answers at {url}{ended}")
            executor = rules.ExecutorUnderCheck(node, process, arguments.handler, payload, slow, arguments.stop_timeout)
            first = {"health": rules.health, "run": rules.runs}
            found += [await _verdict(name, rule, executor) for name, rule in first.items()]
            if all(one.status == PASSED for one in found):
                found += [await _verdict(name, rule, executor) for name, rule in rules.RULES.items()]
            else:
                found += [Verdict(name, SKIPPED, "it runs nothing as it should") for name in rules.RULES]
        finally:
            if process is not None:
                await process.close()


async def _verdict(name: str, rule: Any, executor: Any) -> Verdict:
    """That of the rule; an executor that does not answer breaks it. Raises `ConfigError` where it could not be started
    again meanwhile.
    """
    try:
        verdict: Verdict = await rule(executor)
    except Unavailable as error:
        verdict = Verdict(name, FAILED, str(error))
    if executor.process is not None:
        executor.process.raise_failure()
    return verdict


def _given(text: str | None, flag: str) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError as wrong:
        raise Invalid(f"{flag} is not JSON: write a payload, as '{{\"to\": 3}}'") from wrong
