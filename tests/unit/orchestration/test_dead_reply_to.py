"""Does a dead letter keep where its answer was expected, and does a redrive give that back?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from orchestrix.broker.port import Delivery
from orchestrix.broker.topology import DEAD, SHARD_COORDINATOR, from_json, queue_of_work
from orchestrix.dead_letters.parse import parse, republished
from orchestrix.dead_letters.redrive import row_of
from orchestrix.outbox.rows import message_of
from orchestrix.saga.catalog import Catalog
from sagas.app_provisioning import APP_PROVISIONING

CATALOG, NOW = Catalog([APP_PROVISIONING]), datetime(2026, 1, 2, tzinfo=UTC)
MEMBER = "orchestrix.shard.member.w-1"


def died(queue: str, reply_to: str | None, headers: Mapping[str, object] | None = None) -> Delivery:
    """The copy of a message in the dead letters of `queue`."""
    return Delivery(
        body=b'{"type":"register"}',
        queue=f"{queue}.dead",
        exchange=DEAD,
        routing_key=queue,
        message_id="m-1",
        correlation_id="c",
        type="register",
        headers={"x-reason": "failed: KeyError", **(headers or {})},
        redelivered=False,
        delivery_count=0,
        tag=1,
        session=1,
        reply_to=reply_to,
    )


@pytest.mark.parametrize("queue", [SHARD_COORDINATOR, "cmd.createGitRepo"])
@pytest.mark.parametrize("reply_to", [MEMBER, None])
def test_a_redrive_gives_it_back(queue: str, reply_to: str | None) -> None:
    dead_letter = parse(died(queue, reply_to), CATALOG, NOW).dead_letter
    assert dead_letter.headers.get("x-reply-to") == reply_to
    row = row_of(dead_letter, CATALOG, NOW, taken=())
    stored = replace(row, topology=json.loads(json.dumps(row.topology)))
    message = message_of(stored)
    assert (message.routing_key, message.reply_to) == (queue, reply_to)


def test_the_queue_is_declared_before_it_is_sent_again() -> None:
    row = row_of(parse(died(SHARD_COORDINATOR, MEMBER), CATALOG, NOW).dead_letter, CATALOG, NOW, taken=())
    assert (row.exchange, from_json(row.topology)) == ("", queue_of_work(SHARD_COORDINATOR))


def test_a_row_of_a_command_that_expects_no_answer_declares_nothing() -> None:
    row = row_of(parse(died("cmd.createGitRepo", None), CATALOG, NOW).dead_letter, CATALOG, NOW, taken=())
    assert row.topology is None


def test_a_header_of_that_name_is_no_word_of_the_sender() -> None:
    forged = {"x-reply-to": "cmd.createGitRepo"}
    for reply_to in (None, MEMBER):
        dead_letter = parse(died(SHARD_COORDINATOR, reply_to, forged), CATALOG, NOW).dead_letter
        assert dead_letter.headers.get("x-reply-to") == reply_to


@pytest.mark.parametrize("reply_to", ["nul\0", "é" * 128], ids=["NUL", "256 bytes"])
def test_one_that_no_row_can_have_is_left_out(reply_to: str) -> None:
    dead_letter = parse(died(SHARD_COORDINATOR, reply_to), CATALOG, NOW).dead_letter
    assert message_of(row_of(dead_letter, CATALOG, NOW, taken=())).reply_to is None


def test_it_is_kept_by_one_that_is_requeued() -> None:
    assert republished(died(SHARD_COORDINATOR, MEMBER)).reply_to == MEMBER
    assert republished(died(SHARD_COORDINATOR, None)).reply_to is None
