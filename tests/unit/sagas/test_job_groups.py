"""Is a step whose job is for a group of executors checked, stored for those that can read it, and meant for whom it
says?
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from orchestrix import COMPLETED, Compensation, DefinitionError, FreeData, Job, NothingToUndo, Saga, Step
from orchestrix.domain.data_schema import schema_of
from orchestrix.engine.job_steps import _job
from orchestrix.persistence.sagas import definition_store
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.diagram import to_mermaid
from orchestrix.saga.job_targets import BroadcastEnd, JobTarget, Routing, Strategy
from orchestrix.saga.versions import serialization
from orchestrix.saga.versions.serialization import (
    FORMAT_VERSION,
    PLAIN_FORMAT,
    UnknownFormatError,
    body_of,
    differences,
    digest_of,
    form_of,
    saga_from,
)
from tests.unit.sagas.builders import ORDER, began
from tests.unit.sagas.test_form import FULL

HOUR = timedelta(hours=1)
GONE = NothingToUndo("an index is built again")


def saga_with(job: Job, undo: Compensation | NothingToUndo = GONE) -> Saga:
    """A saga of one step, that job."""
    return Saga("shop", (Step("index", "INDEXING", job=job, event="evt.indexed", then=COMPLETED, undo=undo),))


INDEX = saga_with(Job("index", group="{key}", routing="CONSISTENT_HASH", key="{key}", retries=2))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"routing": "HASH"}, "Job('index', routing='HASH'): expected one of FIRST, LAST, ROUND_ROBIN, "),
        ({"routing": "round_robin"}, 'e.g. routing="ROUND_ROBIN"'),
        ({"routing": 3}, 'e.g. routing="CONSISTENT_HASH"'),
        ({"end": "some"}, "Job('index', end='some'): expected one of all, any"),
        ({"group": 7}, "Job('index', group=7): expected a string or None, e.g. group=\"7\""),
        ({"key": 7}, "Job('index', key=7): expected a string or None"),
        ({"address": 7}, "Job('index', address=7): expected a string or None"),
    ],
)
def test_an_argument_of_another_kind_is_refused_with_what_to_write(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        Job("index", **({"group": "shop"} | given))
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("job", "sentence"),
    [
        (Job("index", routing="FIRST"), "a job's routing is for a group of executors: write group=… or leave routing="),
        (Job("index", key="k"), "a job's key is for a group of executors: write group=… or leave key= out"),
        (Job("index", address="http://a:1"), "a job's address is for a group of executors"),
        (Job("index", end="any"), "a job's end is for a group of executors"),
        (Job("index", "gpu", group="shop"), "a job's queue 'gpu' is of workers, a group of executors: write either"),
        (Job("index", group=""), "a job's group must have 1 to 200 code points, not 0"),
        (Job("index", group=" shop"), "a job's group must not begin or end with white space"),
        (Job("index", group="team-{key}"), "a job's group 'team-{key}': write \"{key}\" alone for the key of the saga"),
        (Job("index", group="{id}"), 'write "{key}" alone for the key of the saga instance, or no braces'),
        (Job("index", group="shop", key="{data.customer}"), "a job's key '{data.customer}': write \"{key}\" alone"),
        (Job("index", group="shop", key="k" * 201), "a job's key must have 1 to 200 code points, not 201"),
        (Job("index", group="shop", routing="ADDRESS"), "a job's address is required with strategy ADDRESS"),
        (Job("index", group="shop", address="http://a:1"), "a job's address has no use with strategy ROUND_ROBIN"),
        (Job("index", group="shop", end="any"), "a job's end has no use with strategy ROUND_ROBIN: leave it out, or"),
        (
            Job("index", group="shop", routing="ADDRESS", address="a:1"),
            "a job's address 'a:1' must be http://host:port or https://host:port in lower case and nothing more",
        ),
        (Job("index", group="shop", routing="ADDRESS", address="http://A:1"), "in lower case"),
        (Job("index", group="shop", routing="ADDRESS", address="http://a:1/"), "and nothing more"),
        (Job("index", group="shop", timeout=timedelta(0)), "the job's timeout must be from 1 ms to ten years"),
    ],
)
@pytest.mark.parametrize("undoes", [False, True], ids=["step", "undo"])
def test_a_job_that_contradicts_itself_is_refused(job: Job, sentence: str, undoes: bool) -> None:
    with pytest.raises(DefinitionError) as refused:
        saga_with(Job("good"), Compensation(event="evt.gone", job=job)) if undoes else saga_with(job)
    assert sentence in str(refused.value)
    assert str(refused.value).startswith(f"saga 'shop', step 'index'{', undo' if undoes else ''}: ")


def test_what_is_not_given_is_stored_as_it_is_meant_now() -> None:
    plain, broadcast = Job("index", group="shop"), Job("index", group="shop", routing="SHARDING_BROADCAST")
    assert (plain.queue, plain.timeout, plain.routing, plain.end) == ("", HOUR, "ROUND_ROBIN", None)
    assert (broadcast.routing, broadcast.end) == ("SHARDING_BROADCAST", "all")
    assert plain == Job("index", group="shop", routing="ROUND_ROBIN", timeout=HOUR)
    assert replace(plain, retries=1).queue == ""
    assert Job("index").timeout is None
    assert saga_with(Job("index", group="cafe\u0301")).steps[0].job == Job("index", group="caf\u00e9")


ADDRESSED = {"routing": "ADDRESS", "address": "https://[fd00::7]:9999"}


@pytest.mark.parametrize(
    ("job", "target"),
    [
        (Job("index"), JobTarget(queue="default")),
        (Job("index", group="shop"), JobTarget(group="shop", routing=Routing(Strategy.ROUND_ROBIN, "order:7"))),
        (
            Job("index", group="{key}", routing="CONSISTENT_HASH"),
            JobTarget(group="ada's", routing=Routing(Strategy.CONSISTENT_HASH, "order:7")),
        ),
        (
            Job("index", group="shop", routing="CONSISTENT_HASH", key="{key}"),
            JobTarget(group="shop", routing=Routing(Strategy.CONSISTENT_HASH, "ada's")),
        ),
        (
            Job("index", group="shop", routing="CONSISTENT_HASH", key="eu"),
            JobTarget(group="shop", routing=Routing(Strategy.CONSISTENT_HASH, "eu")),
        ),
        (
            Job("index", group="shop", **ADDRESSED),  # type: ignore[arg-type]
            JobTarget(group="shop", routing=Routing(Strategy.ADDRESS, "order:7", "https://[fd00::7]:9999")),
        ),
        (
            Job("index", group="shop", routing="SHARDING_BROADCAST", end="any"),
            JobTarget(group="shop", routing=Routing(Strategy.SHARDING_BROADCAST, "order:7", end=BroadcastEnd.ANY)),
        ),
    ],
    ids=lambda one: one.routing if isinstance(one, Job) else "",
)
def test_a_job_is_for_the_queue_or_the_group_that_it_names(job: Job, target: JobTarget) -> None:
    assert saga_with(job).steps[0].job == job
    assert job.target("order", 7, "ada's") == target


def test_the_job_of_a_step_is_made_for_its_group() -> None:
    start = began(INDEX)
    job = _job(start.instance, start.command)
    assert job is not None
    assert (job.queue, job.executor_group, job.handler) == (None, start.instance.key, "index")
    assert (job.routing, job.routing_key, job.routing_address) == ("CONSISTENT_HASH", start.instance.key, None)
    assert (job.retries, job.timeout_ms, job.step) == (2, 3_600_000, "index")
    assert job.payload["event"] == "evt.indexed"


def test_workers_serve_no_job_for_a_group_and_its_command_stays_nobodys() -> None:
    catalog = Catalog([INDEX])
    assert catalog.jobs == ("index",)
    assert catalog.commands == ()


# Stored definitions.

PLAIN_DIGESTS = {
    "full": "fb965d4ed008c9314edf30c56d70d6dd25f0831a65fbb9389417bed8a43c4472",
    "order": "49965df59b6638282a0b50490d42637191441d632f5c60dc8fdc55170642a02a",
}


@pytest.mark.parametrize("saga", [ORDER, FULL], ids=lambda saga: saga.name)
def test_a_definition_without_groups_keeps_its_form_and_digest(saga: Saga) -> None:
    """The digests are those of the release that knew no groups."""
    body = body_of(saga)
    assert digest_of(body) == PLAIN_DIGESTS[saga.name]
    assert form_of(body) == PLAIN_FORMAT == 1
    assert definition_store.stored(saga).form == 1
    assert "group" not in json.dumps(body)


GROUPED = {
    "step": INDEX,
    "undo": saga_with(Job("index"), Compensation(event="evt.gone", job=Job("unindex", group="shop"))),
    "address": saga_with(Job("index", group="shop", **ADDRESSED)),  # type: ignore[arg-type]
    "broadcast": saga_with(Job("index", group="shop", routing="SHARDING_BROADCAST", end="any")),
}


@pytest.mark.parametrize("saga", GROUPED.values(), ids=GROUPED)
def test_a_definition_with_a_group_has_a_form_that_older_nodes_refuse(
    saga: Saga, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = json.loads(json.dumps(body_of(saga)))
    form = form_of(body)
    assert form == definition_store.stored(saga).form == 2
    back = saga_from(body, form)
    assert back == replace(saga, data=FreeData)
    assert (digest_of(body_of(back)), schema_of(back)) == (digest_of(body), schema_of(replace(saga, data=FreeData)))
    monkeypatch.setattr(serialization, "FORMAT_VERSION", PLAIN_FORMAT)
    with pytest.raises(UnknownFormatError, match=r"form 2 of a stored definition is newer than this release"):
        saga_from(body, form)
    assert FORMAT_VERSION == 2


MEANINGFUL: dict[str, dict[str, Any]] = {
    "group": {"group": "other"},
    "routing": {"routing": "FAILOVER"},
    "key": {"routing": "CONSISTENT_HASH", "key": "eu"},
    "address": ADDRESSED,
    "end": {"routing": "SHARDING_BROADCAST", "end": "any"},
    "all": {"routing": "SHARDING_BROADCAST"},
    "time": {"timeout": timedelta(minutes=5)},
}


def test_whatever_a_run_does_otherwise_has_another_digest() -> None:
    sagas = [saga_with(Job("index", **({"group": "shop"} | more))) for more in [{}, *MEANINGFUL.values()]]
    bodies = [body_of(saga) for saga in [saga_with(Job("index")), *sagas]]
    assert len({digest_of(body) for body in bodies}) == len(bodies)
    assert "steps.index.job.group was added" in differences(bodies[0], bodies[1])
    assert 'steps.index.job.group was "shop", is "other"' in differences(bodies[1], bodies[2])


def test_a_diagram_names_the_group() -> None:
    drawn = to_mermaid(saga_with(Job("a: b", group="eu;west")))
    assert "    INDEXING --> COMPLETED: evt.indexed (job a  b of group eu west)\n" in drawn
    assert "(job index of group {key})" in to_mermaid(INDEX)
    assert "job" not in to_mermaid(saga_with(Job("index")))
