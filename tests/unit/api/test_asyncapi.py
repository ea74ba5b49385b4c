"""Does the AsyncAPI document describe every message, in the form of the official schema?"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from jsonschema import Draft7Validator, Draft202012Validator

from orchestrix.api.asyncapi.catalogue import CHANNELS, Party, saga_channels
from orchestrix.api.asyncapi.document import document
from orchestrix.saga.catalog import Catalog
from orchestrix.version import VERSION
from sagas.app_provisioning import APP_PROVISIONING

VENDORED: Final = Path(__file__).parents[2] / "vendored" / "asyncapi"
CATALOG: Final = Catalog([APP_PROVISIONING])


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    """The document as it is sent."""
    found: dict[str, Any] = json.loads(json.dumps(document(VERSION, CATALOG)))
    return found


def faults(candidate: dict[str, Any]) -> list[str]:
    """What the official schema of AsyncAPI 3.1.0 finds wrong."""
    official = Draft7Validator(json.loads((VENDORED / "3.1.0.json").read_text()))
    return [f"{'/'.join(map(str, one.absolute_path))}: {one.message[:200]}" for one in official.iter_errors(candidate)]


def test_it_is_valid_by_the_official_schema(described: dict[str, Any]) -> None:
    assert described["asyncapi"] == "3.1.0"
    assert faults(described) == []


@pytest.mark.parametrize("key", ["channels", "operations", "components", "servers", "info"])
def test_the_official_schema_sees_faults(described: dict[str, Any], key: str) -> None:
    assert faults({**described, key: {**described[key], "not allowed": 5}})


def references(value: Any) -> Iterator[str]:
    """All references in it."""
    if isinstance(value, dict):
        yield from [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_all_that_it_refers_to_is_there(described: dict[str, Any]) -> None:
    for reference in set(references(described)):
        place: Any = described
        for part in reference.removeprefix("#/").split("/"):
            assert part in place, reference
            place = place[part]


def test_every_schema_is_one(described: dict[str, Any]) -> None:
    for schema in described["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    assert not [name for name in described["components"]["schemas"] if name.startswith("_")]


def test_every_channel_has_an_operation_of_a_node(described: dict[str, Any]) -> None:
    actions = {(one["action"], one["channel"]["$ref"].rpartition("/")[2]) for one in described["operations"].values()}
    for channel in (*CHANNELS, *saga_channels(CATALOG)):
        assert (("send", channel.name) in actions) is (channel.sender is Party.NODE)
        assert (("receive", channel.name) in actions) is (channel.receiver is Party.NODE)


def test_commands_and_events_of_sagas_are_named(described: dict[str, Any]) -> None:
    assert {"cmd.createGitRepo", "evt.gitRepoCreated", "cmd.unregisterApp", "evt.appUnregistered"} <= set(
        described["channels"]
    )
    command = described["components"]["messages"]["cmd.createGitRepo"]["payload"]
    assert command["allOf"][1]["properties"]["type"] == {"const": "cmd.createGitRepo"}


def test_the_channels_of_the_contract_are_there(described: dict[str, Any]) -> None:
    addresses = {one["address"] for one in described["channels"].values()}
    exchanges = {
        binding["exchange"]["name"]
        for one in described["channels"].values()
        if "exchange" in (binding := one.get("bindings", {}).get("amqp", {}))
    }
    contract = """orchestrix.coordinator.leader orchestrix.node.{nodeId} orchestrix.job.dispatch.{queue}
        orchestrix.job.assigned orchestrix.job.{jobId}.status orchestrix.job.{jobId}.logs orchestrix.job.handoff
        orchestrix.job.handoff.ack.{nodeId} orchestrix.shard.coordinator evt.stepFailed evt.stepStarted"""
    assert set(contract.split()) <= addresses
    assert {
        "orchestrator.commands",
        "orchestrator.events",
        "orchestrix.coordinator.heartbeat",
        "orchestrix.worker.heartbeat",
        "orchestrix.job.cancel",
    } <= exchanges


def test_parameters_of_addresses_are_described(described: dict[str, Any]) -> None:
    for one in described["channels"].values():
        assert set(re.findall(r"{(\w+)}", one["address"])) == set(one.get("parameters", {}))
