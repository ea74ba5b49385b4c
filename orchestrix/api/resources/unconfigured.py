"""Unconfigured apps: the answer at `/apps` where no resource is there, as in a folder without a project."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from orchestrix.api.problems import Problem
from orchestrix.resource import APPS, Resource


def add(app: FastAPI, resources: Sequence[Resource]) -> None:
    """Makes `/apps` and all below it say what is missing, unless one of `resources` is there.

    It is where the first steps of every guide lead.
    """
    paths = [one.path for one in resources]
    if APPS in paths:
        return

    async def answer(request: Request) -> Response:
        raise Problem("not_found", _describe(request.scope["path"], paths))

    for path in (APPS, f"{APPS}/{{below:path}}"):
        route = Route(path, answer, include_in_schema=False)
        route.methods = None  # whatever is asked for
        app.router.routes.append(route)


def _describe(path: str, others: Sequence[str]) -> str:
    there = f"no resource is configured there, only {', '.join(others)}" if others else "no resource is configured"
    return (
        f"There is nothing at {path[:200]!r}: {there}. Name the module that has it in `resources` of orchestrix.toml, "
        "or run `orchestrix init`, which makes a project to start from."
    )
