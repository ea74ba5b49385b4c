"""Version check: compares the code of this release with the instances that are live."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from urllib.parse import urlsplit

from orchestrix.cli import endpoints, exit_codes, output
from orchestrix.cli.api_client import ApiClient
from orchestrix.cli.settings import load, quieten
from orchestrix.config.settings import Settings
from orchestrix.domain.version_check import Definition, Key, VersionFinding, check_versions

Live = dict[Key, dict[str, int]]


def check(arguments: argparse.Namespace) -> int:
    """`check`: one line for each finding; answers 1 if one of them is a contradiction."""
    settings = load(arguments)
    quieten(settings, arguments)
    stored, live = _facts(arguments, settings)
    found = check_versions(_code(settings), stored, live, _handled(settings))
    if arguments.output == "json":
        output.print_json({"findings": [_json(one) for one in found], "live": _count(live)})
    else:
        _print(found, live)
    return exit_codes.FAILED if any(one.contradiction for one in found) else exit_codes.OK


def _facts(arguments: argparse.Namespace, settings: Settings) -> tuple[list[Definition], Live]:
    """What is stored and what is live, from a database or from an API, by the scheme of `--against`."""
    against = arguments.against or ""
    if urlsplit(against).scheme in ("http", "https"):
        token = settings.api.token
        return _from_api(ApiClient(against, token.get_secret_value() if token else None))
    url = against or endpoints.database(settings, Path.cwd())
    return asyncio.run(_from_database(settings.model_copy(update={"database_url": url})))


def _from_api(api: ApiClient) -> tuple[list[Definition], Live]:
    stored: list[Definition] = []
    live: Live = {}
    for saga in api.get("/sagas")["items"]:
        for one in saga["versions"]:
            if one["definition"] is not None:
                stored.append(Definition(saga["saga"], one["version"], one["digest"], one["definition"]))
            if one["live"]:
                live[saga["saga"], one["version"]] = one["live"]
    return stored, live


async def _from_database(settings: Settings) -> tuple[list[Definition], Live]:
    from orchestrix.bootstrap import open_database
    from orchestrix.bootstrap.factories import check_schema
    from orchestrix.persistence.sagas import definitions

    database = open_database(settings)
    try:
        await check_schema(database)
        async with database.read() as connection:
            rows = await definitions.all_of(connection)
            live = await definitions.live_states(connection)
    finally:
        await database.close()
    return [Definition(one.saga, one.version, one.digest, one.body) for one in rows], live


def _code(settings: Settings) -> list[Definition]:
    from orchestrix.bootstrap import load_catalog
    from orchestrix.saga.versions.serialization import body_of, digest_of

    bodies = [(saga, body_of(saga)) for saga in load_catalog(settings).code]
    return [Definition(saga.name, saga.version, digest_of(body), body) for saga, body in bodies]


def _handled(settings: Settings) -> set[str]:
    from orchestrix.worker.author_code import load_author_code

    return set(load_author_code(settings).handlers)


def _json(one: VersionFinding) -> dict[str, object]:
    return {
        "kind": one.kind,
        "saga": one.saga,
        "version": one.version,
        "count": one.count,
        "detail": one.detail,
        "contradiction": one.contradiction,
    }


def _print(found: list[VersionFinding], live: Live) -> None:
    rows = [
        ("CONTRADICTION" if one.contradiction else "note", one.saga, one.version, one.count, one.detail)
        for one in found
    ]
    if rows:
        output.print_table(("FINDING", "SAGA", "VERSION", "LIVE", "WHAT"), rows)
    else:
        print(f"no findings: {_count(live)} live instances run as before")


def _count(live: Live) -> int:
    return sum(sum(states.values()) for states in live.values())
